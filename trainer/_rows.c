/* Rows of many blocks brought together, for trainer/stream/rows.py, which says what each function does and holds the same
   in numpy. Every index is checked against the sizes of the arrays before memory is touched. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_BUFFERS 19

typedef struct {
    Py_buffer views[MAX_BUFFERS];
    int count;
} Buffers;

static void release(Buffers *held) {
    while (held->count > 0) PyBuffer_Release(&held->views[--held->count]);
}

/* Takes the buffers of some arguments; the last `writable` of them are written to. Sizes of items are checked. */
static int take(Buffers *held, PyObject **arguments, const int *itemsizes, int count, int writable) {
    held->count = 0;
    for (int i = 0; i < count; i++) {
        int flags = PyBUF_C_CONTIGUOUS | (i >= count - writable ? PyBUF_WRITABLE : 0);
        if (PyObject_GetBuffer(arguments[i], &held->views[held->count], flags) < 0) {
            release(held);
            return -1;
        }
        held->count++;
        if (itemsizes[i] && held->views[i].itemsize != itemsizes[i]) {
            PyErr_Format(PyExc_ValueError, "array %d has items of %zd bytes, not %d", i, held->views[i].itemsize, itemsizes[i]);
            release(held);
            return -1;
        }
    }
    return 0;
}

static Py_ssize_t length(const Buffers *held, int i) { return held->views[i].len / held->views[i].itemsize; }

static PyObject *finish(Buffers *held, const char *problem) {
    release(held);
    if (problem) {
        PyErr_SetString(PyExc_ValueError, problem);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* put_block(slot, rows, tokens, masked, width, most_tokens, stride, buffers, lists, flat) -> bool

   Checks what a block's buffers hold and writes them into a slot of the arena. False where anything is unusual or wrong,
   before anything that counts is written: the caller then does the same in numpy, which says what is wrong.

   buffers: offsets, input_ids, segment_a_length, masked offsets, masked positions, labels, bits of is_random_next,
   document_a, document_b. lists: offsets and values of the three columns of lists, each writable; a slot has `stride`
   rows of offsets, and the share of the values that its number of rows gives. flat: the four other columns. */

#define NUM_STORED 9
#define NUM_LISTS 6
#define NUM_FLAT 4

static int take_sequence(Buffers *held, PyObject *sequence, int count, int flags) {
    if (!PyTuple_Check(sequence) || PyTuple_Size(sequence) != count) {
        PyErr_Format(PyExc_ValueError, "put_block: expected a tuple of %d arrays", count);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        if (PyObject_GetBuffer(PyTuple_GetItem(sequence, i), &held->views[held->count], PyBUF_C_CONTIGUOUS | flags) < 0)
            return -1;
        held->count++;
    }
    return 0;
}

/* Whether offsets are ordered from 0 to `total`, with no list longer than `most`. */
static int are_ordered(const int32_t *offsets, int64_t rows, int64_t total, int64_t most) {
    if (offsets[0] != 0 || offsets[rows] != total) return 0;
    for (int64_t n = 0; n < rows; n++) {
        const int64_t size = (int64_t)offsets[n + 1] - offsets[n];
        if (size < 0 || size > most) return 0;
    }
    return 1;
}

static int put_list(const Buffers *held, int column, int64_t slot, int64_t stride, int64_t slots, int64_t rows,
                    const int32_t *offsets, const void *values, int64_t count, int64_t width) {
    const Py_buffer *into_offsets = &held->views[NUM_STORED + 2 * column], *into = into_offsets + 1;
    const int64_t capacity = into->len / slots;
    if (into_offsets->len != (slots * stride + 1) * 8 || count * width > capacity) return 0;
    const int64_t base = slot * capacity;
    int64_t *out = (int64_t *)into_offsets->buf + slot * stride;
    memcpy((char *)into->buf + base, values, (size_t)(count * width));
    for (int64_t n = 0; n <= rows; n++) out[n] = base + offsets[n] * width;
    for (int64_t n = rows + 1; n < stride; n++) out[n] = out[rows];
    return 1;
}

static PyObject *put_block(PyObject *self, PyObject *arguments) {
    long long slot, slots, rows, tokens, masked, width, most_tokens, stride;
    PyObject *stored, *lists, *flat;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "LLLLLLLLOOO", &slot, &slots, &rows, &tokens, &masked, &width, &most_tokens, &stride,
                          &stored, &lists, &flat))
        return NULL;
    Buffers held = {.count = 0};
    if (take_sequence(&held, stored, NUM_STORED, 0) < 0 || take_sequence(&held, lists, NUM_LISTS, PyBUF_WRITABLE) < 0 ||
        take_sequence(&held, flat, NUM_FLAT, PyBUF_WRITABLE) < 0) {
        release(&held);
        return NULL;
    }
    const Py_buffer *in = held.views, *out = held.views + NUM_STORED + NUM_LISTS;
    const int64_t needed[NUM_STORED] = {4 * (rows + 1), tokens * width, 2 * rows,     4 * (rows + 1), 2 * masked,
                                        masked * width, (rows + 7) / 8, 8 * rows, 8 * rows};
    const int64_t widths[NUM_FLAT] = {2, 1, 8, 8};
    int fits = slots > 0 && slot >= 0 && slot < slots && rows > 0 && rows < stride && tokens >= 0 && masked >= 0;
    fits = fits && (width == 2 || width == 4);
    for (int i = 0; i < NUM_STORED && fits; i++) fits = in[i].len >= needed[i];
    for (int i = 0; i < NUM_FLAT && fits; i++) fits = out[i].len >= (slot + 1) * stride * widths[i];
    if (fits) {
        const int32_t *offsets = in[0].buf, *masked_offsets = in[3].buf;
        const uint16_t *segment = in[2].buf;
        const uint8_t *bits = in[6].buf;
        Py_BEGIN_ALLOW_THREADS
        fits = are_ordered(offsets, rows, tokens, most_tokens) && are_ordered(masked_offsets, rows, masked, masked);
        for (int64_t n = 0; n < rows && fits; n++) fits = segment[n] < offsets[n + 1] - offsets[n];
        fits = fits && put_list(&held, 0, slot, stride, slots, rows, offsets, in[1].buf, tokens, width);
        fits = fits && put_list(&held, 1, slot, stride, slots, rows, masked_offsets, in[4].buf, masked, 2);
        fits = fits && put_list(&held, 2, slot, stride, slots, rows, masked_offsets, in[5].buf, masked, width);
        if (fits) {
            const int64_t first = slot * stride;
            memcpy((uint16_t *)out[0].buf + first, segment, (size_t)(2 * rows));
            for (int64_t n = 0; n < rows; n++) ((uint8_t *)out[1].buf)[first + n] = (bits[n >> 3] >> (n & 7)) & 1;
            memcpy((uint64_t *)out[2].buf + first, in[7].buf, (size_t)(8 * rows));
            memcpy((uint64_t *)out[3].buf + first, in[8].buf, (size_t)(8 * rows));
        }
        Py_END_ALLOW_THREADS
    }
    release(&held);
    return PyBool_FromLong(fits);
}

static PyObject *gather_lists(PyObject *self, PyObject *arguments) {
    PyObject *given[6];
    int width;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOiOO", &given[0], &given[1], &given[2], &given[3], &width, &given[4], &given[5]))
        return NULL;
    Buffers held;
    const int itemsizes[6] = {8, 8, 8, width, 4, width};
    if (take(&held, given, itemsizes, 6, 2) < 0) return NULL;
    const int64_t *first = held.views[0].buf, *last = held.views[1].buf, *offsets = held.views[2].buf;
    const char *values = held.views[3].buf;
    int32_t *out_offsets = held.views[4].buf;
    char *out = held.views[5].buf;
    const int64_t runs = length(&held, 0), lists = length(&held, 2) - 1, available = held.views[3].len;
    const int64_t rows = length(&held, 4) - 1, room = held.views[5].len;
    const int shift = width == 4 ? 2 : 1;
    const char *problem = NULL;
    int64_t row = 0, filled = 0;
    if (length(&held, 1) != runs || rows < 0 || (width != 2 && width != 4))
        return finish(&held, "gather_lists: arrays that do not fit together");
    Py_BEGIN_ALLOW_THREADS
    out_offsets[0] = 0;
    for (int64_t run = 0; run < runs && !problem; run++) {
        const int64_t begin = first[run], end = last[run];
        if (begin < 0 || begin > end || end > lists || end - begin > rows - row) {
            problem = "gather_lists: a run lies outside its column, or there are more rows than room";
            break;
        }
        const int64_t start = offsets[begin], size = offsets[end] - start;
        if (start < 0 || size < 0 || start + size > available || size > room - filled) {
            problem = "gather_lists: values lie outside their column, or there are more than room";
            break;
        }
        memcpy(out + filled, values + start, (size_t)size);
        for (int64_t n = begin + 1; n <= end; n++) out_offsets[++row] = (int32_t)((offsets[n] - start + filled) >> shift);
        filled += size;
    }
    if (!problem && (row != rows || filled != room)) problem = "gather_lists: fewer rows or values than room";
    Py_END_ALLOW_THREADS
    return finish(&held, problem);
}

static PyObject *gather_values(PyObject *self, PyObject *arguments) {
    PyObject *given[4];
    int width;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOiO", &given[0], &given[1], &given[2], &width, &given[3])) return NULL;
    Buffers held;
    const int itemsizes[4] = {8, 8, width, width};
    if (take(&held, given, itemsizes, 4, 1) < 0) return NULL;
    const int64_t *first = held.views[0].buf, *last = held.views[1].buf;
    const char *column = held.views[2].buf;
    char *out = held.views[3].buf;
    const int64_t runs = length(&held, 0), available = length(&held, 2), rows = length(&held, 3);
    const char *problem = NULL;
    int64_t row = 0;
    if (length(&held, 1) != runs) return finish(&held, "gather_values: arrays that do not fit together");
    Py_BEGIN_ALLOW_THREADS
    for (int64_t run = 0; run < runs; run++) {
        const int64_t begin = first[run], count = last[run] - begin;
        if (begin < 0 || count < 0 || begin + count > available || count > rows - row) {
            problem = "gather_values: a run lies outside its column, or there are more rows than room";
            break;
        }
        memcpy(out + row * width, column + begin * width, (size_t)(count * width));
        row += count;
    }
    if (!problem && row != rows) problem = "gather_values: fewer rows than room";
    Py_END_ALLOW_THREADS
    return finish(&held, problem);
}

static PyObject *fill_token_columns(PyObject *self, PyObject *arguments) {
    PyObject *given[4];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOO", &given[0], &given[1], &given[2], &given[3])) return NULL;
    Buffers held;
    const int itemsizes[4] = {4, 2, 1, 2};
    if (take(&held, given, itemsizes, 4, 2) < 0) return NULL;
    const int32_t *offsets = held.views[0].buf;
    const uint16_t *segment = held.views[1].buf;
    uint8_t *types = held.views[2].buf;
    uint16_t *places = held.views[3].buf;
    const int64_t rows = length(&held, 0) - 1, tokens = length(&held, 2);
    const char *problem = NULL;
    if (length(&held, 1) != rows || length(&held, 3) != tokens)
        return finish(&held, "fill_token_columns: arrays that do not fit together");
    Py_BEGIN_ALLOW_THREADS
    for (int64_t n = 0; n < rows; n++) {
        const int64_t start = offsets[n], count = offsets[n + 1] - start, a = segment[n];
        if (start < 0 || count < a || count > 65535 || start + count > tokens) {
            problem = "fill_token_columns: lengths that do not fit";
            break;
        }
        memset(types + start, 0, (size_t)a);
        memset(types + start + a, 1, (size_t)(count - a));
        for (int64_t place = 0; place < count; place++) places[start + place] = (uint16_t)place;
    }
    Py_END_ALLOW_THREADS
    return finish(&held, problem);
}

static PyObject *fill_masked_positions(PyObject *self, PyObject *arguments) {
    PyObject *given[4];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOO", &given[0], &given[1], &given[2], &given[3])) return NULL;
    Buffers held;
    const int itemsizes[4] = {4, 4, 2, 4};
    if (take(&held, given, itemsizes, 4, 1) < 0) return NULL;
    const int32_t *offsets = held.views[0].buf, *masked = held.views[1].buf;
    const uint16_t *positions = held.views[2].buf;
    int32_t *out = held.views[3].buf;
    const int64_t rows = length(&held, 0) - 1, count = length(&held, 2);
    const char *problem = NULL;
    if (length(&held, 1) != rows + 1 || length(&held, 3) != count)
        return finish(&held, "fill_masked_positions: arrays that do not fit together");
    Py_BEGIN_ALLOW_THREADS
    for (int64_t n = 0; n < rows; n++) {
        if (masked[n] < 0 || masked[n] > masked[n + 1] || masked[n + 1] > count) {
            problem = "fill_masked_positions: offsets that do not fit";
            break;
        }
        for (int64_t m = masked[n]; m < masked[n + 1]; m++) out[m] = offsets[n] + positions[m];
    }
    Py_END_ALLOW_THREADS
    return finish(&held, problem);
}

static PyMethodDef methods[] = {
    {"put_block", put_block, METH_VARARGS, NULL},
    {"gather_lists", gather_lists, METH_VARARGS, NULL},
    {"gather_values", gather_values, METH_VARARGS, NULL},
    {"fill_token_columns", fill_token_columns, METH_VARARGS, NULL},
    {"fill_masked_positions", fill_masked_positions, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "trainer._rows", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&module); }
