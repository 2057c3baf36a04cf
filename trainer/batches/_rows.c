/* Rows of many blocks brought together, for trainer/batches/rows.py, which says what each function does and holds the same
   in numpy. Every index is checked against the sizes of the arrays before memory is touched. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define MAX_BUFFERS 11

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

/* What fill_columns is given and fills, in the order of its arguments. */
enum { OFFSETS, SEGMENTS, MASKED_OFFSETS, POSITIONS, FIRSTS, LASTS, TYPES, PLACES, MASKED, CU_SEQLENS, LONGEST, COLUMNS };

static uint16_t ascending[UINT16_MAX + 1]; /* 0, 1, 2, ...: copied in a third of the time of counting */

/* The columns of one micro-batch: instances `first` to `last` - 1. */
static const char *fill_cut(const Buffers *held, int64_t first, int64_t last, int32_t *cu_seqlens, int32_t *longest) {
    const int32_t *offsets = held->views[OFFSETS].buf, *masked = held->views[MASKED_OFFSETS].buf;
    const uint16_t *segments = held->views[SEGMENTS].buf, *positions = held->views[POSITIONS].buf;
    uint8_t *types = held->views[TYPES].buf;
    uint16_t *places = held->views[PLACES].buf;
    int32_t *out = held->views[MASKED].buf;
    const int64_t tokens = length(held, TYPES), count = length(held, POSITIONS), base = offsets[first];
    *longest = 0;
    for (int64_t n = first; n < last; n++) {
        const int64_t start = offsets[n], size = offsets[n + 1] - start, a = segments[n];
        if (start < base || base < 0 || size < a || size > 65535 || start + size > tokens)
            return "fill_columns: lengths that do not fit";
        if (masked[n] < 0 || masked[n] > masked[n + 1] || masked[n + 1] > count)
            return "fill_columns: offsets that do not fit";
        memset(types + start, 0, (size_t)a);
        memset(types + start + a, 1, (size_t)(size - a));
        memcpy(places + start, ascending, (size_t)(2 * size));
        const int32_t from = (int32_t)(start - base);
        for (int64_t m = masked[n]; m < masked[n + 1]; m++) out[m] = from + positions[m];
        *cu_seqlens++ = from;
        if (size > *longest) *longest = (int32_t)size;
    }
    *cu_seqlens = (int32_t)(offsets[last] - base);
    return NULL;
}

static PyObject *fill_columns(PyObject *self, PyObject *arguments) {
    PyObject *given[COLUMNS];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOOOO", &given[0], &given[1], &given[2], &given[3], &given[4], &given[5], &given[6],
                          &given[7], &given[8], &given[9], &given[10]))
        return NULL;
    Buffers held;
    const int itemsizes[COLUMNS] = {4, 2, 4, 2, 8, 8, 1, 2, 4, 4, 4};
    if (take(&held, given, itemsizes, COLUMNS, COLUMNS - TYPES) < 0) return NULL;
    const int64_t *firsts = held.views[FIRSTS].buf, *lasts = held.views[LASTS].buf;
    const int64_t rows = length(&held, OFFSETS) - 1, cuts = length(&held, FIRSTS), room = length(&held, CU_SEQLENS);
    int32_t *cu_seqlens = held.views[CU_SEQLENS].buf, *longest = held.views[LONGEST].buf;
    const char *problem = NULL;
    int64_t filled = 0;
    if (rows < 0 || length(&held, SEGMENTS) != rows || length(&held, MASKED_OFFSETS) != rows + 1 ||
        length(&held, LASTS) != cuts || length(&held, LONGEST) != cuts || length(&held, PLACES) != length(&held, TYPES) ||
        length(&held, MASKED) != length(&held, POSITIONS))
        return finish(&held, "fill_columns: arrays that do not fit together");
    Py_BEGIN_ALLOW_THREADS
    for (int64_t cut = 0; cut < cuts && !problem; cut++) {
        const int64_t first = firsts[cut], last = lasts[cut];
        if (first < 0 || first > last || last > rows || last - first + 1 > room - filled) {
            problem = "fill_columns: a cut lies outside the instances, or there are more than room";
            break;
        }
        problem = fill_cut(&held, first, last, cu_seqlens + filled, longest + cut);
        filled += last - first + 1;
    }
    if (!problem && filled != room) problem = "fill_columns: fewer instances than room";
    Py_END_ALLOW_THREADS
    return finish(&held, problem);
}

static PyMethodDef methods[] = {
    {"gather_lists", gather_lists, METH_VARARGS, NULL},
    {"fill_columns", fill_columns, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *module) {
    (void)module;
    for (int place = 0; place <= UINT16_MAX; place++) ascending[place] = (uint16_t)place;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, set_up}, {0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "trainer.batches._rows", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__rows(void) { return PyModuleDef_Init(&module); }
