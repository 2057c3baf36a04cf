/* pipeline.documents._bzip2: a decompressor as bz2.BZ2Decompressor is one, which gives at most so many bytes a call. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>

#include "native/bzip2.h"

typedef struct {
    PyObject_HEAD
    Decoder *decoder;
    uint8_t *input;       /* what the decoder has not read */
    size_t capacity;
    char needs_input, is_at_end;
} Decompressor;

static PyObject *make(PyTypeObject *type, PyObject *Py_UNUSED(arguments), PyObject *Py_UNUSED(named)) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Decompressor *self = (Decompressor *)allocate(type, 0);
    if (self == NULL) return NULL;
    self->decoder = malloc(sizeof *self->decoder);
    if (self->decoder == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->decoder->phase = STREAM_START;
    memset(&self->decoder->reader, 0, sizeof self->decoder->reader);
    self->needs_input = 1;
    return (PyObject *)self;
}

static void drop(Decompressor *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->decoder);
    free(self->input);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Puts data behind what has not been read: of the bytes that the decoder took into its bits, it gets whole ones back. */
static int add_input(Decompressor *self, const uint8_t *data, size_t size) {
    BitReader *reader = &self->decoder->reader;
    reader->at -= reader->num_bits / 8;
    reader->num_bits %= 8;
    reader->bits &= ~(~0ULL >> reader->num_bits);
    size_t rest = (size_t)(reader->end - reader->at);
    if (rest) memmove(self->input, reader->at, rest);
    if (rest + size > self->capacity) {
        uint8_t *input = realloc(self->input, rest + size);
        if (input == NULL) return 0;
        self->input = input;
        self->capacity = rest + size;
    }
    if (size) memcpy(self->input + rest, data, size);
    reader->at = self->input;
    reader->end = self->input + rest + size;
    return 1;
}

static PyObject *decompress(Decompressor *self, PyObject *arguments) {
    const char *data;
    Py_ssize_t size, max_length;
    if (!PyArg_ParseTuple(arguments, "y#n:decompress", &data, &size, &max_length)) return NULL;
    if (max_length < 1) return PyErr_Format(PyExc_ValueError, "max_length=%zd: expected at least 1", max_length);
    if (self->is_at_end) {
        PyErr_SetString(PyExc_EOFError, "the stream has ended");
        return NULL;
    }
    uint8_t *out = malloc((size_t)max_length);
    if (out == NULL || !add_input(self, (const uint8_t *)data, (size_t)size)) {
        free(out);
        return PyErr_NoMemory();
    }
    size_t num_bytes;
    enum Status status;
    Py_BEGIN_ALLOW_THREADS
    status = decode(self->decoder, out, (size_t)max_length, &num_bytes);
    Py_END_ALLOW_THREADS
    self->needs_input = status == NEEDS_INPUT;
    self->is_at_end = status == AT_END;
    PyObject *result = NULL;
    if (status == BROKEN) PyErr_SetString(PyExc_OSError, self->decoder->problem);
    else result = PyBytes_FromStringAndSize((char *)out, (Py_ssize_t)num_bytes);
    free(out);
    return result;
}

static PyObject *get_eof(Decompressor *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->is_at_end);
}

static PyObject *get_needs_input(Decompressor *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->needs_input);
}

static PyObject *get_unused_data(Decompressor *self, void *Py_UNUSED(closure)) {
    const BitReader *reader = &self->decoder->reader;
    if (!self->is_at_end) return PyBytes_FromStringAndSize("", 0);
    return PyBytes_FromStringAndSize((const char *)reader->at, reader->end - reader->at);
}

static PyMethodDef methods[] = {
    {"decompress", (PyCFunction)decompress, METH_VARARGS,
     "Up to max_length bytes of the text, as far as the data given so far goes."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef attributes[] = {
    {"eof", (getter)get_eof, NULL, "Whether the end of the stream has been read.", NULL},
    {"needs_input", (getter)get_needs_input, NULL, "Whether there is no more text without more data.", NULL},
    {"unused_data", (getter)get_unused_data, NULL, "What was given behind the end of the stream.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "Decompresses one bzip2 stream."},
    {Py_tp_new, make},
    {Py_tp_dealloc, drop},
    {Py_tp_methods, methods},
    {Py_tp_getset, attributes},
    {0, NULL},
};

static PyType_Spec type_spec = {
    "pipeline.documents._bzip2.Decompressor", sizeof(Decompressor), 0, Py_TPFLAGS_DEFAULT, type_slots,
};

static int prepare(PyObject *module) {
    make_checksum_table();
    PyObject *type = PyType_FromModuleAndSpec(module, &type_spec, NULL);
    return type == NULL ? -1 : PyModule_AddObjectRef(module, "Decompressor", type) < 0 ? -1 : (Py_DECREF(type), 0);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "pipeline.documents._bzip2", NULL, 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__bzip2(void) { return PyModuleDef_Init(&module); }
