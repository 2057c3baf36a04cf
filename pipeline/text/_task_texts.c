/* pipeline.text._task_texts: the rules of pipeline/text/task_texts.py over bytes, on the way of every document.
 *
 * What a character becomes comes as a table from there, so that the rule stands in one place. Windows of words are
 * looked up by a hash and then compared byte by byte, so no hash decides what is found. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NUM_CODES 0x10000 /* characters beyond separate words */
#define ALONE 0x10000     /* of a form: the character is a word by itself */
#define RING 128          /* words of a text that are kept, by their number; more than the longest window */
#define NONE UINT64_MAX
#define BASE 0x9E3779B97F4A7C15u

enum { SEPARATOR, DROPPED };

static inline const uint8_t *read_character(const uint8_t *text, const uint8_t *end, uint32_t *code) {
    *code = text[0];
    size_t length = *code < 0x80 ? 1 : *code < 0xE0 ? 2 : *code < 0xF0 ? 3 : 4;
    if (length > (size_t)(end - text)) length = (size_t)(end - text);
    if (length > 1) *code &= 0xFF >> (length + 1);
    for (size_t index = 1; index < length; index++) *code = *code << 6 | (text[index] & 0x3F);
    return text + length;
}

static inline uint8_t *write_character(uint8_t *out, uint32_t code) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    } else {
        *out++ = (uint8_t)(0xE0 | code >> 12);
        *out++ = (uint8_t)(0x80 | (code >> 6 & 0x3F));
        *out++ = (uint8_t)(0x80 | (code & 0x3F));
    }
    return out;
}

/* Writes a text's words with single spaces between them, and one before the first; returns the number of bytes. No
 * character takes more than twice its own. */
static size_t normalize_bytes(const uint8_t *text, const uint8_t *end, const uint32_t *forms, uint8_t *words) {
    uint8_t *out = words;
    bool behind_space = true;
    *out++ = ' ';
    while (text < end) {
        for (; text < end && *text < 0x80; text++) { /* without a jump a letter, since no one foresees a word's end */
            uint32_t form = forms[*text];
            bool is_separator = form == SEPARATOR, is_dropped = form == DROPPED;
            *out = (uint8_t)(form + (is_separator << 5));
            out += !(is_dropped | (is_separator & behind_space));
            behind_space = is_separator | (is_dropped & behind_space);
        }
        if (text == end) break;
        uint32_t code;
        text = read_character(text, end, &code);
        uint32_t form = code < NUM_CODES ? forms[code] : SEPARATOR;
        if (form == DROPPED) continue;
        bool is_apart = form == SEPARATOR || form & ALONE;
        if (is_apart && !behind_space) *out++ = ' ';
        if (form != SEPARATOR) out = write_character(out, form & 0xFFFF);
        if (form & ALONE) *out++ = ' ';
        behind_space = is_apart;
    }
    return (size_t)(out - words) - behind_space;
}

/* The last words of a normalised text, read one after the other. */
typedef struct {
    const uint8_t *text, *next, *end;
    size_t count;           /* words read */
    uint64_t sums[RING];    /* of the words before a number, by powers of BASE */
    const uint8_t *starts[RING], *stops[RING];
} Words;

static void begin_words(Words *words, const uint8_t *text, const uint8_t *end) {
    words->text = words->next = text;
    words->end = end;
    words->count = 0;
    words->sums[0] = 0;
}

static inline uint64_t mix(uint64_t value) {
    value = (value ^ value >> 32) * 0xD6E8FEB86659FD93u;
    return value ^ value >> 32;
}

/* Up to eight bytes of a word as a number, the first one lowest; returns how many there are before its end. */
static inline size_t read_bytes(const uint8_t *place, const uint8_t *end, uint64_t *bytes) {
    size_t length = (size_t)(end - place);
    uint64_t found = 0;
    if (length >= 8) {
        memcpy(&found, place, 8);
        length = 8;
    } else {
        memcpy(&found, place, length);
    }
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    found = __builtin_bswap64(found);
#endif
    uint64_t others = found ^ 0x2020202020202020u;
    uint64_t spaces = (others - 0x0101010101010101u) & ~others & 0x8080808080808080u; /* the lowest bit is exact */
    if (spaces) {
        length = (size_t)__builtin_ctzll(spaces) / 8;
        found &= ((uint64_t)1 << 8 * length) - 1;
    }
    *bytes = found;
    return length;
}

/* Reads on until `count` words are read, or as many as there are. */
static inline bool read_words(Words *words, size_t count) {
    while (words->count < count) {
        const uint8_t *place = words->next;
        if (place >= words->end) return false;
        size_t number = words->count++;
        words->starts[number % RING] = place;
        uint64_t hash = 0, bytes = 0;
        for (size_t length = 8; length == 8; place += length) {
            length = read_bytes(place, words->end, &bytes);
            if (length) hash = (hash ^ bytes) * BASE;
        }
        words->stops[number % RING] = place;
        words->sums[words->count % RING] = words->sums[number % RING] * BASE + mix(hash);
        words->next = place + 1;
    }
    return true;
}

static uint64_t power_of_base(size_t exponent) {
    uint64_t power = 1;
    while (exponent--) power *= BASE;
    return power;
}

/* The hash of the words from number `first` to `stop` - 1; `power` is BASE to their number. */
static inline uint64_t hash_window(const Words *words, size_t first, size_t stop, uint64_t power) {
    return mix(words->sums[stop % RING] - words->sums[first % RING] * power);
}

/* The windows of the texts of task files: all of n words, and whole texts of fewer by their first `least` words. */
typedef struct {
    const uint8_t *texts;
    size_t size; /* of the texts, each with a line end behind it */
    uint64_t *slots, mask;
    uint64_t *filter; /* of the first `least` words of windows and texts: most words of a document end here */
    uint64_t filter_mask;
    size_t n, least;
    uint64_t power, least_power;
} Table;

/* Whether a slot's words are those at `start`: a window's own bytes, or all of a text of the task files. */
static bool is_equal(
    const Table *table, uint64_t slot, const uint8_t *start, const uint8_t *stop, const uint8_t *end
) {
    const uint8_t *own = table->texts + ((slot & UINT32_MAX) >> 1);
    size_t room = (size_t)(table->texts + table->size - own), length = (size_t)(stop - start);
    if (slot & 1) {
        length = (size_t)((const uint8_t *)memchr(own, '\n', room) - own);
        if (length > (size_t)(end - start) || (start + length < end && start[length] != ' ')) return false;
    } else if (length >= room || (own[length] != ' ' && own[length] != '\n')) {
        return false;
    }
    return memcmp(own, start, length) == 0;
}

/* The first slot of these words, or where one belongs (*place). `end` is that of the text that holds them. */
static uint64_t look_up(
    const Table *table, uint64_t hash, int whole, const uint8_t *start, const uint8_t *stop, const uint8_t *end,
    uint64_t *place
) {
    uint64_t index = (hash + (uint64_t)whole) & table->mask;
    for (; table->slots[index] != NONE; index = (index + 1) & table->mask) {
        uint64_t slot = table->slots[index];
        if (slot >> 32 == hash >> 32 && (int)(slot & 1) == whole && is_equal(table, slot, start, stop, end)) return slot;
    }
    *place = index;
    return NONE;
}

/* Three bits of one number, of 16 or more a window: one hash in a hundred has them by chance. */
static inline uint64_t filter_bits(uint64_t hash) {
    return (uint64_t)1 << (hash & 63) | (uint64_t)1 << (hash >> 6 & 63) | (uint64_t)1 << (hash >> 12 & 63);
}

static inline bool may_begin(const Table *table, uint64_t hash) {
    return (~table->filter[hash >> 18 & table->filter_mask] & filter_bits(hash)) == 0;
}

/* Of copies only the first has a slot; so has none a whole text that begins with an earlier one, found in its place. */
static void insert(
    Table *table, uint64_t hash, int whole, const uint8_t *start, const uint8_t *stop, const uint8_t *end
) {
    uint64_t place;
    if (look_up(table, hash, whole, start, stop, end, &place) != NONE) return;
    table->slots[place] = hash >> 32 << 32 | (uint64_t)(start - table->texts) << 1 | (uint64_t)whole;
}

/* The hash of the first `least` words from number `first` on. */
static inline uint64_t hash_beginning(const Table *table, const Words *words, size_t first) {
    return hash_window(words, first, first + table->least, table->least_power);
}

static void insert_text(Table *table, const uint8_t *text, const uint8_t *end) {
    Words words;
    begin_words(&words, text, end);
    for (size_t first = 0; read_words(&words, first + table->n) || (first == 0 && words.count >= table->least); first++) {
        uint64_t beginning = hash_beginning(table, &words, first);
        table->filter[beginning >> 18 & table->filter_mask] |= filter_bits(beginning);
        if (words.count < table->n) {
            insert(table, beginning, 1, text, end, end);
            return;
        }
        uint64_t hash = hash_window(&words, first, first + table->n, table->power);
        insert(table, hash, 0, words.starts[first % RING], words.stops[(first + table->n - 1) % RING], end);
    }
}

static void fill_table(Table *table) {
    const uint8_t *text = table->texts, *end = text + table->size;
    while (text < end) {
        const uint8_t *stop = memchr(text, '\n', (size_t)(end - text));
        insert_text(table, text, stop);
        text = stop + 1;
    }
}

/* Where the first window of a text that is in the table lies in the task files, or -1. */
static int64_t find_window(const Table *table, const uint8_t *text, const uint8_t *end) {
    Words words;
    uint64_t place, slot;
    begin_words(&words, text, end);
    for (size_t first = 0;; first++) {
        bool is_full = read_words(&words, first + table->n);
        if (!is_full && words.count < first + table->least) return -1;
        uint64_t beginning = hash_beginning(table, &words, first);
        if (!may_begin(table, beginning)) continue;
        const uint8_t *start = words.starts[first % RING];
        if (is_full) {
            uint64_t hash = hash_window(&words, first, first + table->n, table->power);
            const uint8_t *stop = words.stops[(first + table->n - 1) % RING];
            if ((slot = look_up(table, hash, 0, start, stop, end, &place)) != NONE)
                return (int64_t)((slot & UINT32_MAX) >> 1);
        }
        if ((slot = look_up(table, beginning, 1, start, start, end, &place)) != NONE)
            return (int64_t)((slot & UINT32_MAX) >> 1);
    }
}

typedef struct {
    PyObject_HEAD
    Table table;
    Py_buffer texts, forms;
} Windows;

static void windows_dealloc(Windows *self) {
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    free(self->table.slots);
    free(self->table.filter);
    PyBuffer_Release(&self->texts);
    PyBuffer_Release(&self->forms);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static bool make_table(Table *table, Py_ssize_t n, Py_ssize_t least, const Py_buffer *texts) {
    *table = (Table){.texts = texts->buf, .size = (size_t)texts->len, .n = (size_t)n, .least = (size_t)least};
    table->power = power_of_base(table->n);
    table->least_power = power_of_base(table->least);
    uint64_t most = 0, slots = 2; /* every word begins a window at most */
    for (size_t index = 0; index < table->size; index++) most += table->texts[index] <= ' ';
    while (slots < 2 * most) slots *= 2;
    table->mask = slots - 1;
    uint64_t filters = slots < 8 ? 1 : slots / 8;
    table->filter_mask = filters - 1;
    table->slots = malloc(slots * sizeof(uint64_t));
    table->filter = calloc(filters, sizeof(uint64_t));
    if (table->slots == NULL || table->filter == NULL) return false;
    memset(table->slots, 0xFF, slots * sizeof(uint64_t));
    return true;
}

static PyObject *windows_new(PyTypeObject *type, PyObject *arguments, PyObject *Py_UNUSED(keywords)) {
    Py_buffer texts, forms;
    Py_ssize_t n, least;
    if (!PyArg_ParseTuple(arguments, "y*y*nn", &texts, &forms, &n, &least)) return NULL;
    Windows *self = (Windows *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self == NULL) {
        PyBuffer_Release(&texts);
        PyBuffer_Release(&forms);
        return NULL;
    }
    self->texts = texts;
    self->forms = forms;
    bool has_lines = texts.len == 0 || ((const uint8_t *)texts.buf)[texts.len - 1] == '\n';
    if (least < 1 || least > n || n >= RING || texts.len >= INT32_MAX || !has_lines || forms.len != NUM_CODES * 4) {
        PyErr_SetString(PyExc_ValueError, "expected lines below 2 GiB, 65,536 forms, and windows below 128 words");
    } else if (!make_table(&self->table, n, least, &self->texts)) {
        PyErr_NoMemory();
    } else {
        Py_BEGIN_ALLOW_THREADS
        fill_table(&self->table);
        Py_END_ALLOW_THREADS
        return (PyObject *)self;
    }
    Py_DECREF(self);
    return NULL;
}

/* The words of a text; behind a space, if there are any. */
static uint8_t *normalize_text(const Py_buffer *text, const Py_buffer *forms, size_t *length) {
    uint8_t *words = malloc(2 * (size_t)text->len + 8);
    if (words == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    const uint8_t *start = text->buf;
    *length = normalize_bytes(start, start + text->len, forms->buf, words);
    Py_END_ALLOW_THREADS
    return words;
}

static PyObject *windows_find(Windows *self, PyObject *arguments) {
    Py_buffer text;
    size_t length;
    int64_t found = -1;
    if (!PyArg_ParseTuple(arguments, "y*", &text)) return NULL;
    uint8_t *words = normalize_text(&text, &self->forms, &length);
    PyBuffer_Release(&text);
    if (words == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS
    found = length ? find_window(&self->table, words + 1, words + length) : -1;
    Py_END_ALLOW_THREADS
    free(words);
    return PyLong_FromLongLong(found);
}

static PyObject *normalize(PyObject *Py_UNUSED(self), PyObject *arguments) {
    Py_buffer text, forms;
    size_t length;
    if (!PyArg_ParseTuple(arguments, "y*y*", &text, &forms)) return NULL;
    PyObject *result = NULL;
    if (forms.len != NUM_CODES * 4) {
        PyErr_SetString(PyExc_ValueError, "expected the forms of 65,536 characters");
    } else {
        uint8_t *words = normalize_text(&text, &forms, &length);
        size_t spaces = words != NULL && length > 0;
        if (words != NULL) result = PyBytes_FromStringAndSize((const char *)words + spaces, (Py_ssize_t)(length - spaces));
        free(words);
    }
    PyBuffer_Release(&text);
    PyBuffer_Release(&forms);
    return result;
}

static PyMethodDef windows_methods[] = {
    {"find", (PyCFunction)windows_find, METH_VARARGS, "Where a text's first window lies in the texts, or -1."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot windows_slots[] = {
    {Py_tp_new, windows_new}, {Py_tp_dealloc, windows_dealloc}, {Py_tp_methods, windows_methods}, {0, NULL},
};

static PyType_Spec windows_spec = {
    "pipeline.text._task_texts.Windows", sizeof(Windows), 0, Py_TPFLAGS_DEFAULT, windows_slots,
};

static int add_windows(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &windows_spec, NULL);
    if (type == NULL) return -1;
    int result = PyModule_AddObjectRef(module, "Windows", type);
    Py_DECREF(type);
    return result;
}

static PyMethodDef methods[] = {
    {"normalize", normalize, METH_VARARGS, "The words of UTF-8 with single spaces between them."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_windows}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "pipeline.text._task_texts", NULL, 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__task_texts(void);

PyMODINIT_FUNC PyInit__task_texts(void) { return PyModuleDef_Init(&module); }
