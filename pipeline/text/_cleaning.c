/* pipeline.text._cleaning: one function, the rules of pipeline/text/cleaning.py in one go over the bytes of a text.
 *
 * What a character is comes as a table from there, so that the lists stand in one place. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NUM_CODES 0x10000 /* characters beyond are all kept */

enum { KEPT, SPACE, LINE_END, DROPPED };

/* The byte after a character that is no plain byte; its kind. */
static inline const uint8_t *read_character(
    const uint8_t *text, const uint8_t *end, const uint8_t *kinds, uint8_t *kind
) {
    uint32_t code = text[0];
    size_t length = code < 0x80 ? 1 : code < 0xE0 ? 2 : code < 0xF0 ? 3 : 4;
    if (length > (size_t)(end - text)) length = (size_t)(end - text);
    if (length > 1) code &= 0xFF >> (length + 1);
    for (size_t index = 1; index < length; index++) code = code << 6 | (text[index] & 0x3F);
    *kind = code < NUM_CODES ? kinds[code] : KEPT;
    return text + length;
}

/* Writes the cleaned text, which is never longer, and returns the number of its bytes.
 *
 * `plain` says of each byte whether it is kept without a look at its character; a space is, behind another byte. */
static size_t clean_bytes(
    const uint8_t *text, const uint8_t *end, const uint8_t *kinds, const uint8_t *plain, uint8_t *cleaned
) {
    uint8_t *out = cleaned, waiting = KEPT; /* what is written before the next character that is kept */
    while (text < end) {
        const uint8_t *start = text;
        uint8_t kind = KEPT;
        if (plain[*text] && *text != ' ') {
            do text++;
            while (text < end && plain[*text] && !(*text == ' ' && text[-1] == ' '));
            if (text[-1] == ' ') text--;
        } else {
            text = read_character(text, end, kinds, &kind);
        }
        if (kind == KEPT) {
            if (waiting != KEPT && out > cleaned) *out++ = waiting == SPACE ? ' ' : '\n';
            waiting = KEPT;
            memcpy(out, start, (size_t)(text - start));
            out += text - start;
        } else if (kind == LINE_END || (kind == SPACE && waiting == KEPT)) {
            waiting = kind;
        }
    }
    return (size_t)(out - cleaned);
}

static PyObject *clean(PyObject *Py_UNUSED(self), PyObject *arguments) {
    Py_buffer text, kinds, plain;
    if (!PyArg_ParseTuple(arguments, "y*y*y*", &text, &kinds, &plain)) return NULL;
    PyObject *result = NULL;
    uint8_t *cleaned = malloc((size_t)text.len + 1);
    if (kinds.len != NUM_CODES || plain.len != 256) {
        PyErr_SetString(PyExc_ValueError, "expected the kinds of 65,536 characters and 256 bytes");
    } else if (cleaned == NULL) {
        PyErr_NoMemory();
    } else {
        const uint8_t *start = text.buf;
        size_t length;
        Py_BEGIN_ALLOW_THREADS
        length = clean_bytes(start, start + text.len, kinds.buf, plain.buf, cleaned);
        Py_END_ALLOW_THREADS
        result = PyUnicode_DecodeUTF8((const char *)cleaned, (Py_ssize_t)length, NULL);
    }
    free(cleaned);
    PyBuffer_Release(&text);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&plain);
    return result;
}

static PyMethodDef methods[] = {
    {"clean", clean, METH_VARARGS, "The cleaned text of UTF-8, by the kinds of characters and of plain bytes."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "pipeline.text._cleaning", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__cleaning(void) { return PyModuleDef_Init(&module); }
