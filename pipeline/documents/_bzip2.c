/* pipeline.documents._bzip2: a decompressor as bz2.BZ2Decompressor is one, which gives at most so many bytes a call. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <sys/mman.h>

#include "native/bzip2.h"

#define HUGE_PAGE ((size_t)1 << 21)
#define MAX_OUT (1 << 20)

typedef struct {
    Decoder decoder;
    uint8_t out[MAX_OUT];
} Memory;

typedef struct {
    PyObject_HEAD
    Memory *memory;
    uint8_t *input;       /* what the decoder has not read */
    size_t capacity;
    char needs_input, is_at_end;
} Decompressor;

/* Streams are short and follow each other: the last one's memory is kept for the next. A text is walked through at
 * random, so on pages of 4 kB half of the time would go into looking them up. */
static Memory *spare;

static Memory *take_memory(void) {
    size_t size = (sizeof *spare + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    Memory *memory = spare;
    spare = NULL;
    if (memory == NULL) {
        memory = aligned_alloc(HUGE_PAGE, size);
        if (memory == NULL) return NULL;
#ifdef MADV_HUGEPAGE
        madvise(memory, size, MADV_HUGEPAGE);  /* without them it is slower, no more */
#endif
    }
    memory->decoder.phase = STREAM_START;
    memset(&memory->decoder.reader, 0, sizeof memory->decoder.reader);
    return memory;
}

static void leave_memory(Memory *memory) {
    if (spare) free(memory);
    else spare = memory;
}

static PyObject *make(PyTypeObject *type, PyObject *Py_UNUSED(arguments), PyObject *Py_UNUSED(named)) {
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Decompressor *self = (Decompressor *)allocate(type, 0);
    if (self == NULL) return NULL;
    self->memory = take_memory();
    if (self->memory == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->needs_input = 1;
    return (PyObject *)self;
}

static void drop(Decompressor *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    leave_memory(self->memory);
    free(self->input);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

/* Puts data behind what has not been read: of the bytes that the decoder took into its bits, it gets whole ones back. */
static int add_input(Decompressor *self, const uint8_t *data, size_t size) {
    BitReader *reader = &self->memory->decoder.reader;
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
    if (!add_input(self, (const uint8_t *)data, (size_t)size)) return PyErr_NoMemory();
    Decoder *decoder = &self->memory->decoder;
    uint8_t *out = self->memory->out;
    size_t num_bytes, room = max_length < MAX_OUT ? (size_t)max_length : MAX_OUT;
    enum Status status;
    Py_BEGIN_ALLOW_THREADS
    status = decode(decoder, out, room, &num_bytes);
    Py_END_ALLOW_THREADS
    self->needs_input = status == NEEDS_INPUT;
    self->is_at_end = status == AT_END;
    if (status != BROKEN) return PyBytes_FromStringAndSize((char *)out, (Py_ssize_t)num_bytes);
    PyErr_SetString(PyExc_OSError, decoder->problem);
    return NULL;
}

static PyObject *get_eof(Decompressor *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->is_at_end);
}

static PyObject *get_needs_input(Decompressor *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(self->needs_input);
}

static PyObject *get_unused_data(Decompressor *self, void *Py_UNUSED(closure)) {
    const BitReader *reader = &self->memory->decoder.reader;
    if (!self->is_at_end) return PyBytes_FromStringAndSize("", 0);
    return PyBytes_FromStringAndSize((const char *)reader->at, reader->end - reader->at);
}

static PyMethodDef methods[] = {
    {"decompress", (PyCFunction)decompress, METH_VARARGS,
     "Up to max_length bytes of the text, and a MiB, as far as the data given so far goes."},
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
