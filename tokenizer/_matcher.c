/* The module tokenizer._matcher. It encodes sentences to ids for tokenizer/compiled_encoder.py,
 * which says what the arguments are, and cleans text for pipeline/text/cleaning.py. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "native/cleaning.h"
#include "native/sentences.h"

typedef struct {
    PyObject_HEAD
    Matcher matcher;
} MatcherObject;

static void dealloc(PyObject *object) {
    MatcherObject *self = (MatcherObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    free_trie(&self->matcher.trie);
    free(self->matcher.characters.places);
    free(self->matcher.characters.forms);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Returns pieces from a list of bytes and a buffer of their ids; NULL if an error is set. */
static Piece *collect_pieces(PyObject *list, const Py_buffer *ids) {
    Py_ssize_t count = PyList_Size(list);
    if (ids->len != 4 * count) {
        PyErr_SetString(PyExc_ValueError, "expected an id of 4 bytes for every piece");
        return NULL;
    }
    Piece *pieces = calloc((size_t)count + 1, sizeof *pieces);
    for (Py_ssize_t index = 0; pieces != NULL && index < count; index++) {
        char *bytes;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyList_GetItem(list, index), &bytes, &length) < 0) {
            free(pieces);
            return NULL;
        }
        pieces[index] = (Piece){(const uint8_t *)bytes, (size_t)length, 0};
        memcpy(&pieces[index].id, (const char *)ids->buf + 4 * index, 4);
    }
    if (pieces == NULL) PyErr_NoMemory();
    return pieces;
}

/* Finds the id of every punctuation byte, which is a word of one byte. */
static void find_mark_ids(Matcher *matcher) {
    const Trie *trie = &matcher->trie;
    for (size_t byte = 0; byte < 256; byte++) {
        uint32_t state = find_child(trie, FIRST_ROOT, (uint8_t)byte);
        int is_piece = state != NO_STATE && trie->failures[state].next == OTHER_ROOT;
        matcher->mark_ids[byte] =
            is_piece ? trie->pops[trie->failures[state].pops + 1] : matcher->unknown_id;
    }
}

/* Matcher(pieces, ids, num_first, kinds, unknown_id, max_characters). */
static PyObject *new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *list;
    Py_buffer ids, kinds;
    Py_ssize_t num_first;
    unsigned int unknown_id, max_characters;
    if (!PyArg_ParseTuple(
            arguments, "O!y*ny*II", &PyList_Type, &list, &ids, &num_first, &kinds, &unknown_id,
            &max_characters
        ))
        return NULL;
    MatcherObject *self = (MatcherObject *)PyType_GenericAlloc(type, 0);
    Piece *pieces = self == NULL ? NULL : collect_pieces(list, &ids);
    if (pieces != NULL && (kinds.len != 256 || num_first < 0 || num_first > PyList_Size(list))) {
        PyErr_SetString(PyExc_ValueError, "expected the kinds of 256 bytes, and pieces");
    } else if (pieces != NULL) {
        Matcher *matcher = &self->matcher;
        memcpy(matcher->kinds, kinds.buf, 256);
        matcher->unknown_id = unknown_id;
        matcher->max_characters = max_characters;
        if (build_trie(&matcher->trie, pieces, (size_t)num_first, (size_t)PyList_Size(list)))
            find_mark_ids(matcher);
        else
            PyErr_SetString(PyExc_OverflowError, "the pieces are not sorted, or too many");
    }
    free(pieces);
    PyBuffer_Release(&ids);
    PyBuffer_Release(&kinds);
    if (PyErr_Occurred()) Py_CLEAR(self);
    return (PyObject *)self;
}

/* Matcher.learn(code_point, form). A form that is too long is not learned: the caller goes on to
 * get the chunks of its character. */
static PyObject *learn(PyObject *object, PyObject *arguments) {
    unsigned int code;
    const char *form;
    Py_ssize_t length;
    if (!PyArg_ParseTuple(arguments, "Iy#", &code, &form, &length)) return NULL;
    Characters *characters = &((MatcherObject *)object)->matcher.characters;
    int is_fit = code < NUM_CODE_POINTS && length <= MAX_FORM_BYTES;
    if (is_fit && !learn_form(characters, code, form, (size_t)length)) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* Returns the chunks that are left to the caller: for each the number of ids before it, the number
 * of its sentence, and its bytes. */
static PyObject *list_left(const Output *output) {
    PyObject *list = PyList_New(0);
    for (size_t index = 0; list != NULL && index < output->num_left; index++) {
        const Left *left = &output->left[index];
        PyObject *item = Py_BuildValue(
            "nny#", (Py_ssize_t)left->place, (Py_ssize_t)left->sentence,
            (const char *)left->text.bytes, (Py_ssize_t)left->text.length
        );
        if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

static PyObject *as_bytes(const uint32_t *numbers, size_t count) {
    return PyBytes_FromStringAndSize((const char *)numbers, 4 * (Py_ssize_t)count);
}

/* Matcher.encode(sentences). Returns ids, numbers of ids of the sentences, and chunks
 * (list_left). */
static PyObject *encode(PyObject *object, PyObject *argument) {
    const Matcher *matcher = &((MatcherObject *)object)->matcher;
    PyObject *sentences = PySequence_Tuple(argument), *result = NULL;
    if (sentences == NULL) return NULL;
    size_t count = (size_t)PyTuple_Size(sentences);
    Output output = {NULL, 0, 0, NULL, 0, 0, 0};
    uint32_t *lengths = malloc((count + 1) * sizeof *lengths);
    output.no_memory = lengths == NULL;
    for (size_t index = 0; index < count && !output.no_memory; index++) {
        Py_ssize_t length;
        PyObject *sentence = PyTuple_GetItem(sentences, (Py_ssize_t)index);
        const char *bytes = PyUnicode_AsUTF8AndSize(sentence, &length);
        if (bytes == NULL) break;
        size_t before = output.num_ids;
        encode_sentence(matcher, (Text){(const uint8_t *)bytes, (size_t)length}, index, &output);
        lengths[index] = (uint32_t)(output.num_ids - before);
    }
    if (output.no_memory) PyErr_NoMemory();
    if (!PyErr_Occurred())
        result = Py_BuildValue(
            "NNN", as_bytes(output.ids, output.num_ids), as_bytes(lengths, count),
            list_left(&output)
        );
    free(output.ids);
    free(output.left);
    free(lengths);
    Py_DECREF(sentences);
    return result;
}

/* clean(text, kinds, plain): see native/cleaning.h. */
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
        size_t length = clean_bytes(start, start + text.len, kinds.buf, plain.buf, cleaned);
        result = PyUnicode_DecodeUTF8((const char *)cleaned, (Py_ssize_t)length, NULL);
    }
    free(cleaned);
    PyBuffer_Release(&text);
    PyBuffer_Release(&kinds);
    PyBuffer_Release(&plain);
    return result;
}

static PyMethodDef methods[] = {
    {"learn", learn, METH_VARARGS, "Takes the form of a character, by its code point."},
    {"encode", encode, METH_O, "Ids, numbers of ids by sentence, and chunks left to the caller."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, new},
    {Py_tp_dealloc, dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    "tokenizer._matcher.Matcher", sizeof(MatcherObject), 0, Py_TPFLAGS_DEFAULT, slots,
};

static int add_type(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return result;
}

static PyMethodDef module_methods[] = {
    {"clean", clean, METH_VARARGS, "The cleaned text of UTF-8, by kinds of characters and bytes."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_type}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "tokenizer._matcher", .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__matcher(void) { return PyModuleDef_Init(&module); }
