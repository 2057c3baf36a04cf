/* Checks of arrays that come from Python as buffers. */
#ifndef BEAMBERT_ARGUMENTS_H
#define BEAMBERT_ARGUMENTS_H

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

static inline bool refuse(const char *what)
{
    PyErr_Format(PyExc_ValueError, "arrays of instances do not fit each other: %s", what);
    return false;
}

/* Whether an array holds `count` items, or with -1 any number of whole ones. Empty ones may lie anywhere. */
static inline bool holds(const Py_buffer *array, size_t item_bytes, Py_ssize_t count, const char *name)
{
    Py_ssize_t size = (Py_ssize_t)item_bytes;
    bool is_aligned = !array->len || (uintptr_t)array->buf % item_bytes == 0;
    if (is_aligned && array->len % size == 0 && (count < 0 || array->len / size == count))
        return true;
    PyErr_Format(PyExc_ValueError, "%s: %zd bytes are not %zd aligned items of %zd", name, array->len,
                 count < 0 ? array->len / size : count, size);
    return false;
}

static inline PyObject *release(Py_buffer *arrays, int count, PyObject *result)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&arrays[i]);
    return result;
}

static inline bool ascends(const int64_t *values, Py_ssize_t count, int64_t first, int64_t least_step,
                           int64_t greatest_step)
{
    if (values[0] != first)
        return false;
    for (Py_ssize_t i = 1; i < count; i++)
        if (values[i] < values[i - 1] || values[i] - values[i - 1] < least_step
            || values[i] - values[i - 1] > greatest_step)
            return false;
    return true;
}

#endif
