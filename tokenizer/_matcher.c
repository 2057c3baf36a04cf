/* tokenizer._matcher: words of sentences to ids, for tokenizer/compiled_encoder.py, which says what the arguments are,
 * and raw text to cleaned text, for pipeline/text/cleaning.py.
 *
 * One lock a matcher keeps threads apart while the interpreter's is released. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include "native/cleaning.h"
#include "native/sentences.h"

typedef struct {
    PyObject_HEAD
    PyThread_type_lock lock;
    Matcher matcher;
} MatcherObject;

static void MatcherObject_dealloc(PyObject *object) {
    MatcherObject *self = (MatcherObject *)object;
    PyTypeObject *type = Py_TYPE(object);
    free_trie(&self->matcher.trie);
    free_characters(&self->matcher.characters);
    if (self->lock != NULL) PyThread_free_lock(self->lock);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Appends a root's pieces: a list of bytes, ascending, and the buffer of their ids. Returns 0 with an error set. */
static int collect_pieces(PyObject *list, const Py_buffer *ids, Piece *pieces) {
    Py_ssize_t count = PyList_Size(list);
    for (Py_ssize_t index = 0; index < count; index++) {
        char *bytes;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyList_GetItem(list, index), &bytes, &length) < 0) return 0;
        Piece *piece = &pieces[index];
        *piece = (Piece){(const uint8_t *)bytes, (size_t)length, 0};
        memcpy(&piece->id, (const char *)ids->buf + 4 * index, 4);
        int order = 1;
        if (index > 0) {
            size_t shorter = piece->length < piece[-1].length ? piece->length : piece[-1].length;
            order = memcmp(piece->bytes, piece[-1].bytes, shorter);
            if (order == 0) order = piece->length > piece[-1].length;
        }
        if (length == 0 || order <= 0 || piece->id >= MANY_POPS) {
            PyErr_SetString(PyExc_ValueError, "pieces must be distinct, ascending and not empty, ids below 2**31");
            return 0;
        }
    }
    return 1;
}

static int build(Matcher *matcher, PyObject *first, const Py_buffer *first_ids, PyObject *other, const Py_buffer *other_ids) {
    Py_ssize_t num_first = PyList_Size(first), num_other = PyList_Size(other);
    if (first_ids->len != 4 * num_first || other_ids->len != 4 * num_other) {
        PyErr_SetString(PyExc_ValueError, "expected an id of 4 bytes for every piece");
        return 0;
    }
    Piece *pieces = malloc(((size_t)num_first + (size_t)num_other + 1) * sizeof *pieces);
    if (pieces == NULL) {
        PyErr_NoMemory();
        return 0;
    }
    int is_good = collect_pieces(first, first_ids, pieces) && collect_pieces(other, other_ids, pieces + num_first);
    if (is_good) {
        TrieResult result = build_trie(&matcher->trie, pieces, (size_t)num_first, (size_t)(num_first + num_other));
        is_good = result == TRIE_BUILT;
        if (result == TRIE_NO_MEMORY) PyErr_NoMemory();
        if (result == TRIE_TOO_LARGE) PyErr_SetString(PyExc_OverflowError, "the vocabulary needs too large a trie");
    }
    free(pieces);
    return is_good;
}

static void find_mark_ids(Matcher *matcher) {
    for (size_t byte = 0; byte < 256; byte++) {
        uint32_t state = find_child(&matcher->trie, FIRST_ROOT, (uint8_t)byte);
        int is_piece = state != NO_STATE && matcher->trie.failures[state].next == OTHER_ROOT;
        matcher->mark_ids[byte] = is_piece ? matcher->trie.failures[state].pops : matcher->unknown_id;
    }
}

static PyObject *MatcherObject_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    PyObject *first, *other;
    Py_buffer first_ids, other_ids, kinds;
    unsigned int unknown_id, max_characters;
    if (!PyArg_ParseTuple(
            arguments, "O!y*O!y*y*II", &PyList_Type, &first, &first_ids, &PyList_Type, &other, &other_ids, &kinds,
            &unknown_id, &max_characters
        ))
        return NULL;
    MatcherObject *self = (MatcherObject *)PyType_GenericAlloc(type, 0);
    int is_good = self != NULL;
    if (is_good && kinds.len != 256) {
        PyErr_SetString(PyExc_ValueError, "expected the kinds of 256 bytes");
        is_good = 0;
    }
    if (is_good) {
        memcpy(self->matcher.kinds, kinds.buf, 256);
        self->matcher.unknown_id = unknown_id;
        self->matcher.max_characters = max_characters;
        self->lock = PyThread_allocate_lock();
        if (self->lock == NULL) PyErr_NoMemory();
        is_good = self->lock != NULL && build(&self->matcher, first, &first_ids, other, &other_ids);
    }
    if (is_good) find_mark_ids(&self->matcher);
    PyBuffer_Release(&first_ids);
    PyBuffer_Release(&other_ids);
    PyBuffer_Release(&kinds);
    if (is_good) return (PyObject *)self;
    Py_XDECREF((PyObject *)self);
    return NULL;
}

/* UTF-8 of the sentences; `*kept` holds them for as long as it is needed. NULL with an error set. */
static Text *gather_texts(PyObject *sentences, PyObject **kept, size_t *count) {
    *kept = PySequence_Tuple(sentences);
    if (*kept == NULL) return NULL;
    *count = (size_t)PyTuple_Size(*kept);
    Text *texts = malloc((*count + 1) * sizeof *texts);
    if (texts == NULL) PyErr_NoMemory();
    for (size_t index = 0; texts != NULL && index < *count; index++) {
        Py_ssize_t length;
        const char *bytes = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(*kept, (Py_ssize_t)index), &length);
        texts[index] = (Text){(const uint8_t *)bytes, (size_t)length};
        if (bytes == NULL) {
            free(texts);
            texts = NULL;
        }
    }
    if (texts == NULL) Py_CLEAR(*kept);
    return texts;
}

static PyObject *find_new(PyObject *object, PyObject *sentences) {
    MatcherObject *self = (MatcherObject *)object;
    PyObject *kept;
    size_t count;
    Text *texts = gather_texts(sentences, &kept, &count);
    if (texts == NULL) return NULL;
    NewCharacters found = {NULL, 0, 0, 0};
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->lock, WAIT_LOCK);
    for (size_t index = 0; index < count; index++) find_new_characters(&self->matcher, texts[index], &found);
    PyThread_release_lock(self->lock);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (found.no_memory) PyErr_NoMemory();
    else result = PyUnicode_FromStringAndSize((const char *)found.bytes, (Py_ssize_t)found.num_bytes);
    free(found.bytes);
    free(texts);
    Py_DECREF(kept);
    return result;
}

static PyObject *learn(PyObject *object, PyObject *arguments) {
    MatcherObject *self = (MatcherObject *)object;
    PyObject *characters, *forms;
    if (!PyArg_ParseTuple(arguments, "UO!", &characters, &PyList_Type, &forms)) return NULL;
    Py_ssize_t count = PyUnicode_GetLength(characters);
    if (PyList_Size(forms) != count) {
        PyErr_SetString(PyExc_ValueError, "expected a form for every character");
        return NULL;
    }
    for (Py_ssize_t index = 0; index < count; index++) {
        Py_UCS4 code_point = PyUnicode_ReadChar(characters, index);
        char *form;
        Py_ssize_t length;
        if (PyList_GetItem(forms, index) == Py_None) continue;
        if (PyBytes_AsStringAndSize(PyList_GetItem(forms, index), &form, &length) < 0) return NULL;
        if (length > MAX_FORM_BYTES) continue;
        Py_BEGIN_ALLOW_THREADS
        PyThread_acquire_lock(self->lock, WAIT_LOCK);
        Py_END_ALLOW_THREADS
        int is_learned = learn_form(&self->matcher.characters, code_point, (const uint8_t *)form, (size_t)length);
        PyThread_release_lock(self->lock);
        if (!is_learned) return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

/* [(ids before those of the chunk, its sentence, its bytes)] */
static PyObject *list_left(const Output *output) {
    PyObject *list = PyList_New(0);
    for (size_t index = 0; list != NULL && index < output->num_left; index++) {
        const Left *left = &output->left[index];
        PyObject *item = Py_BuildValue(
            "nny#", (Py_ssize_t)left->place, (Py_ssize_t)left->sentence, (const char *)left->text.bytes,
            (Py_ssize_t)left->text.length
        );
        if (item == NULL || PyList_Append(list, item) < 0) Py_CLEAR(list);
        Py_XDECREF(item);
    }
    return list;
}

/* The ids in as many bytes each as asked for. */
static PyObject *pack_ids(const Output *output, unsigned int id_bytes) {
    PyObject *array = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(output->num_ids * id_bytes));
    if (array == NULL) return NULL;
    char *bytes = PyByteArray_AsString(array);
    if (id_bytes == 4) {
        if (output->num_ids) memcpy(bytes, output->ids, 4 * output->num_ids);
    } else {
        for (size_t index = 0; index < output->num_ids; index++) {
            uint16_t id = (uint16_t)output->ids[index];
            memcpy(bytes + 2 * index, &id, 2);
        }
    }
    return array;
}

static PyObject *encode(PyObject *object, PyObject *arguments) {
    MatcherObject *self = (MatcherObject *)object;
    PyObject *sentences, *kept, *result = NULL;
    unsigned int id_bytes;
    size_t count;
    if (!PyArg_ParseTuple(arguments, "OI", &sentences, &id_bytes)) return NULL;
    if (id_bytes != 2 && id_bytes != 4) return PyErr_Format(PyExc_ValueError, "ids of %u bytes: expected 2 or 4", id_bytes);
    Text *texts = gather_texts(sentences, &kept, &count);
    if (texts == NULL) return NULL;
    Output output = {NULL, 0, 0, NULL, 0, 0, 0};
    uint32_t *lengths = malloc((count + 1) * sizeof *lengths);
    if (lengths == NULL) output.no_memory = 1;
    Py_BEGIN_ALLOW_THREADS
    PyThread_acquire_lock(self->lock, WAIT_LOCK);
    for (size_t index = 0; index < count && !output.no_memory; index++) {
        size_t before = output.num_ids;
        encode_sentence(&self->matcher, texts[index], index, &output);
        lengths[index] = (uint32_t)(output.num_ids - before);
    }
    PyThread_release_lock(self->lock);
    Py_END_ALLOW_THREADS
    if (output.no_memory) {
        PyErr_NoMemory();
    } else {
        PyObject *ids = pack_ids(&output, id_bytes), *left = list_left(&output);
        PyObject *counts = PyByteArray_FromStringAndSize((const char *)lengths, (Py_ssize_t)(4 * count));
        if (ids != NULL && counts != NULL && left != NULL) result = PyTuple_Pack(3, ids, counts, left);
        Py_XDECREF(ids);
        Py_XDECREF(counts);
        Py_XDECREF(left);
    }
    free(output.ids);
    free(output.left);
    free(lengths);
    free(texts);
    Py_DECREF(kept);
    return result;
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
    {"find_new", find_new, METH_O, "The characters of sentences that are not ASCII and were not met before."},
    {"learn", learn, METH_VARARGS, "Takes the forms of characters, None for one whose surroundings decide."},
    {"encode", encode, METH_VARARGS, "Ids, numbers of ids by sentence, and the chunks that are left to the caller."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_new, MatcherObject_new},
    {Py_tp_dealloc, MatcherObject_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {"tokenizer._matcher.Matcher", sizeof(MatcherObject), 0, Py_TPFLAGS_DEFAULT, slots};

static int add_type(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);
    int result = type == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)type);
    Py_XDECREF(type);
    return result;
}

static PyMethodDef module_methods[] = {
    {"clean", clean, METH_VARARGS, "The cleaned text of UTF-8, by the kinds of characters and of plain bytes."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, add_type}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "tokenizer._matcher", NULL, 0, module_methods, module_slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__matcher(void) { return PyModuleDef_Init(&module); }
