/* Stored blocks unpacked into the arena of trainer/stream/arena.py by one call, without the interpreter lock.

   Only what is as it should be is taken: of anything else the answer is False, and Python and numpy, which are the
   definition, say what is wrong. zstd is the system's own library, looked for when the module is imported: where there
   is none, IS_USABLE is 0. Every number is checked against the sizes of the arrays before memory is touched. */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifndef _WIN32
#include <dlfcn.h>
#endif

#define NUM_BUFFERS 10
#define NUM_LISTS 6
#define NUM_FLAT 4
#define MAX_BUFFER_BYTES ((int64_t)1 << 19)

enum { OFFSETS, IDS, SEGMENTS, MASKED_OFFSETS, POSITIONS, LABEL_OFFSETS, LABELS, RANDOM, DOCUMENT_A, DOCUMENT_B };

static void *(*create_context)(void);
static size_t (*free_context)(void *);
static size_t (*decompress)(void *, void *, size_t, const void *, size_t);
static size_t (*frame_size)(const void *, size_t);
static unsigned long long (*content_size)(const void *, size_t);

static int is_usable;
static void *spare_context; /* taken and given back under the interpreter lock */

static void find_zstd(void) {
#ifndef _WIN32
    static const char *const names[] = {"libzstd.so.1", "libzstd.1.dylib"};
    void *library = NULL;
    for (size_t i = 0; i < 2 && !library; i++) library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (library) {
        create_context = (void *(*)(void))dlsym(library, "ZSTD_createDCtx");
        free_context = (size_t(*)(void *))dlsym(library, "ZSTD_freeDCtx");
        decompress = (size_t(*)(void *, void *, size_t, const void *, size_t))dlsym(library, "ZSTD_decompressDCtx");
        frame_size = (size_t(*)(const void *, size_t))dlsym(library, "ZSTD_findFrameCompressedSize");
        content_size = (unsigned long long (*)(const void *, size_t))dlsym(library, "ZSTD_getFrameContentSize");
    }
#endif
    is_usable = create_context && free_context && decompress && frame_size && content_size;
}

typedef struct {
    Py_buffer views[2 + NUM_LISTS + NUM_FLAT]; /* the template, counts, lists, flat */
    int count;
} Held;

static void release(Held *held) {
    while (held->count > 0) PyBuffer_Release(&held->views[--held->count]);
}

static int take(Held *held, PyObject *object, int flags) {
    if (PyObject_GetBuffer(object, &held->views[held->count], PyBUF_C_CONTIGUOUS | flags) < 0) return -1;
    held->count++;
    return 0;
}

static int take_all(Held *held, PyObject *tuple, int count) {
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count) {
        PyErr_Format(PyExc_ValueError, "put_stored: expected a tuple of %d arrays", count);
        return -1;
    }
    for (int i = 0; i < count; i++)
        if (take(held, PyTuple_GetItem(tuple, i), PyBUF_WRITABLE) < 0) return -1;
    return 0;
}

typedef struct {
    int64_t body_bytes, num_rows, nodes, buffers; /* first bytes of what differs between blocks of one schema */
    int64_t slot, slots, rows, tokens, width, most_tokens, vocab_size, stride;
} Numbers;

typedef struct {
    const char *stored;
    int64_t stored_bytes, length;
    int is_plain; /* not a frame of zstd */
    char *into;
} Buffer;

static int64_t number_at(const char *message, int64_t place) {
    int64_t number;
    memcpy(&number, message + place, 8);
    return number;
}

/* Whether the messages before the body are those of the template but for the numbers, which stay within it. */
static int is_like(const char *data, const char *template, int64_t size, const Numbers *at) {
    const int64_t spans[4][2] = {
        {at->body_bytes, 8}, {at->num_rows, 8}, {at->nodes, 16 * NUM_BUFFERS}, {at->buffers, 32 * NUM_BUFFERS}};
    int64_t done = 0;
    while (done < size) {
        int64_t start = size, stop = size; /* of the next span of numbers */
        for (int i = 0; i < 4; i++)
            if (spans[i][0] >= done && spans[i][0] < start) start = spans[i][0], stop = start + spans[i][1];
        if (stop > size || memcmp(data + done, template + done, (size_t)(start - done))) return 0;
        done = stop;
    }
    return 1;
}

/* Finds the buffers and how long they become. Returns the masked positions of the block, -1 where it is unusual. */
static int64_t find_buffers(const char *data, int64_t size, int64_t body, const Numbers *at, Buffer *found) {
    static const unsigned char end[8] = {0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0};
    const int64_t body_bytes = number_at(data, at->body_bytes), masked = number_at(data, at->nodes + 16 * POSITIONS);
    if (body_bytes < 0 || body_bytes != size - body - 8 || memcmp(data + size - 8, end, 8)) return -1;
    if (number_at(data, at->num_rows) != at->rows || masked < 0 || masked > at->tokens) return -1;
    for (int i = 0; i < NUM_BUFFERS; i++) {
        const int64_t count = i == IDS ? at->tokens : i == POSITIONS || i == LABELS ? masked : at->rows;
        const char *node = data + at->nodes + 16 * i, *place = data + at->buffers + 32 * i + 16;
        if (number_at(node, 0) != count || number_at(node, 8) != 0) return -1;
        const int64_t start = number_at(place, 0), bytes = number_at(place, 8);
        if (start < 0 || bytes < 8 || start > body_bytes || bytes > body_bytes - start) return -1;
        found[i].stored = data + body + start + 8;
        found[i].stored_bytes = bytes - 8;
        found[i].length = number_at(data + body + start, 0);
        found[i].is_plain = found[i].length == -1;
        if (found[i].is_plain) found[i].length = found[i].stored_bytes;
        if (found[i].length < 0 || found[i].length > MAX_BUFFER_BYTES) return -1;
    }
    return masked;
}

/* Frames of today's format alone: the system's library may know those before it too, by decoders that few look after. */
static int unpack(void *context, const Buffer *buffer) {
    static const unsigned char magic[4] = {0x28, 0xb5, 0x2f, 0xfd};
    if (buffer->is_plain) {
        memcpy(buffer->into, buffer->stored, (size_t)buffer->length);
        return 1;
    }
    const size_t bytes = (size_t)buffer->stored_bytes, length = (size_t)buffer->length;
    if (bytes < sizeof magic || memcmp(buffer->stored, magic, sizeof magic)) return 0;
    return content_size(buffer->stored, bytes) == length && frame_size(buffer->stored, bytes) == bytes &&
           decompress(context, buffer->into, length, buffer->stored, bytes) == length;
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

/* Whether every token id is below `limit`, above 0. Kept apart, and in the ids' own width, so that compilers look at
   many ids at a time: inlined, it took 30 us a block in place of 5. */
#ifdef __GNUC__
__attribute__((noinline))
#endif
static int
are_below(const void *ids, int64_t count, int64_t width, int64_t limit) {
    if (width == 2) {
        const uint16_t *narrow = ids, top = (uint16_t)(limit > UINT16_MAX ? UINT16_MAX : limit - 1);
        uint16_t is_above = 0;
        for (int64_t i = 0; i < count; i++) is_above |= (uint16_t)(narrow[i] > top);
        return !is_above;
    }
    const uint32_t *wide = ids, top = (uint32_t)(limit > UINT32_MAX ? UINT32_MAX : limit - 1);
    uint32_t is_above = 0;
    for (int64_t i = 0; i < count; i++) is_above |= (uint32_t)(wide[i] > top);
    return !is_above;
}

/* Whether every masked position lies in its own instance; both offsets are ordered. */
static int are_inside(const int32_t *offsets, const int32_t *masked_offsets, int64_t rows, const uint16_t *positions) {
    int is_outside = 0;
    for (int64_t n = 0; n < rows; n++) {
        const int32_t size = offsets[n + 1] - offsets[n];
        for (int32_t i = masked_offsets[n]; i < masked_offsets[n + 1]; i++) is_outside |= positions[i] >= size;
    }
    return !is_outside;
}

static void put_offsets(const Held *held, int column, const Numbers *at, const int32_t *offsets, int64_t width) {
    const Py_buffer *into = &held->views[2 + 2 * column];
    const int64_t base = at->slot * (into[1].len / at->slots);
    int64_t *out = (int64_t *)into->buf + at->slot * at->stride;
    for (int64_t n = 0; n <= at->rows; n++) out[n] = base + offsets[n] * width;
    for (int64_t n = at->rows + 1; n < at->stride; n++) out[n] = out[at->rows];
}

static int is_values(int i) { return i == IDS || i == POSITIONS || i == LABELS; }

/* Unpacks every buffer, those of values into the slot itself, then checks and places the rest. */
static int put(const Held *held, const Numbers *at, Buffer *buffers, int64_t masked, void *context, char *scratch) {
    const Py_buffer *lists = held->views + 2, *flat = lists + NUM_LISTS;
    const int64_t rows = at->rows, widths[NUM_FLAT] = {2, 1, 8, 8};
    const int64_t needed[NUM_BUFFERS] = {4 * (rows + 1), at->tokens * at->width, 2 * rows,       4 * (rows + 1), 2 * masked,
                                         4 * (rows + 1), masked * at->width,     (rows + 7) / 8, 8 * rows,       8 * rows};
    for (int i = 0; i < NUM_FLAT; i++)
        if (flat[i].len < (at->slot + 1) * at->stride * widths[i]) return 0;
    for (int i = 0; i < NUM_BUFFERS; i++) {
        const int64_t length = buffers[i].length;
        if (length < needed[i]) return 0;
        if (is_values(i)) {
            const int column = i == IDS ? 0 : i == POSITIONS ? 1 : 2;
            const Py_buffer *into = &lists[2 * column + 1];
            const int64_t capacity = into->len / at->slots;
            if (lists[2 * column].len != (at->slots * at->stride + 1) * 8 || length > capacity) return 0;
            buffers[i].into = (char *)into->buf + at->slot * capacity;
            if ((uintptr_t)buffers[i].into % (i == POSITIONS ? 2 : (uintptr_t)at->width)) return 0;
        } else {
            buffers[i].into = scratch;
            scratch += (length + 7) & -8;
        }
        if (i == LABEL_OFFSETS) { /* the same bytes as those of the masked positions, or Python is asked */
            const Buffer *other = &buffers[MASKED_OFFSETS];
            if (buffers[i].stored_bytes != other->stored_bytes || buffers[i].length != other->length ||
                buffers[i].is_plain != other->is_plain ||
                memcmp(buffers[i].stored, other->stored, (size_t)other->stored_bytes))
                return 0;
        } else if (!unpack(context, &buffers[i])) {
            return 0;
        }
    }
    const int32_t *offsets = (int32_t *)buffers[OFFSETS].into, *masked_offsets = (int32_t *)buffers[MASKED_OFFSETS].into;
    const uint16_t *segments = (uint16_t *)buffers[SEGMENTS].into;
    const uint8_t *bits = (uint8_t *)buffers[RANDOM].into;
    if (!are_ordered(offsets, rows, at->tokens, at->most_tokens) || !are_ordered(masked_offsets, rows, masked, masked))
        return 0;
    for (int64_t n = 0; n < rows; n++)
        if (segments[n] >= offsets[n + 1] - offsets[n]) return 0;
    if (!are_inside(offsets, masked_offsets, rows, (const uint16_t *)buffers[POSITIONS].into) ||
        !are_below(buffers[IDS].into, at->tokens, at->width, at->vocab_size) ||
        !are_below(buffers[LABELS].into, masked, at->width, at->vocab_size))
        return 0;
    put_offsets(held, 0, at, offsets, at->width);
    put_offsets(held, 1, at, masked_offsets, 2);
    put_offsets(held, 2, at, masked_offsets, at->width);
    const int64_t first = at->slot * at->stride;
    uint8_t *is_random = (uint8_t *)flat[1].buf + first;
    memcpy((uint16_t *)flat[0].buf + first, segments, (size_t)(2 * rows));
    for (int64_t n = 0; n < rows; n++) is_random[n] = (bits[n >> 3] >> (n & 7)) & 1;
    memcpy((uint64_t *)flat[2].buf + first, buffers[DOCUMENT_A].into, (size_t)(8 * rows));
    memcpy((uint64_t *)flat[3].buf + first, buffers[DOCUMENT_B].into, (size_t)(8 * rows));
    return 1;
}

static int put_checked(const Py_buffer *block, const Held *held, const Numbers *at, void *context) {
    const int64_t size = block->len, body = held->views[0].len;
    const char *data = block->buf;
    if (at->slots <= 0 || at->slots > INT32_MAX || at->slot < 0 || at->slot >= at->slots) return 0;
    if (at->rows <= 0 || at->rows >= at->stride || at->stride > MAX_BUFFER_BYTES) return 0;
    if (at->vocab_size <= 0 || at->tokens < 0 || at->tokens > MAX_BUFFER_BYTES || (at->width != 2 && at->width != 4)) return 0;
    if (at->body_bytes < 0 || at->num_rows < 0 || at->nodes < 0 || at->buffers < 0 || size < body + 8) return 0;
    if (at->body_bytes > body - 8 || at->num_rows > body - 8 || at->nodes > body - 16 * NUM_BUFFERS) return 0;
    if (at->buffers > body - 32 * NUM_BUFFERS || !is_like(data, held->views[0].buf, body, at)) return 0;
    Buffer buffers[NUM_BUFFERS];
    const int64_t masked = find_buffers(data, size, body, at, buffers);
    if (masked < 0) return 0;
    int64_t scratch_bytes = 0;
    for (int i = 0; i < NUM_BUFFERS; i++) scratch_bytes += is_values(i) ? 0 : buffers[i].length + 8;
    char *scratch = malloc((size_t)scratch_bytes);
    const int fits = scratch && put(held, at, buffers, masked, context, scratch);
    free(scratch);
    return fits;
}

/* How many of the blocks are in their slots: all before the first that is not as it should be. */
static Py_ssize_t put_all(const Py_buffer *blocks, Py_ssize_t count, const Held *held, Numbers at, void *context) {
    const char *counts = held->views[1].buf;
    for (Py_ssize_t i = 0; i < count; i++) {
        at.slot = number_at(counts, 24 * i);
        at.rows = number_at(counts, 24 * i + 8);
        at.tokens = number_at(counts, 24 * i + 16);
        if (!put_checked(&blocks[i], held, &at, context)) return i;
    }
    return count;
}

/* put_stored(blocks, template, (body_bytes, num_rows, nodes, buffers), (slots, width, most_tokens, vocab_size, stride),
   counts, lists, flat) -> int

   How many of the blocks, a list of their stored bytes, are now in slots: those before the first that is not as it
   should be, or all. The messages of each are those of the template but for their numbers; it holds as many instances
   and tokens as `counts` [blocks, 3] says after its slot, no instance of more than most_tokens, ids below vocab_size and
   masked positions inside their instances. lists: offsets and values of the three columns of lists, each writable; a
   slot has `stride` rows of offsets, and the share of the values that its number of `slots` gives. flat: the four
   other columns. */
static PyObject *put_stored(PyObject *self, PyObject *arguments) {
    PyObject *list, *template, *numbers, *lists, *flat;
    long long n[9];
    (void)self;
    if (!PyArg_ParseTuple(arguments, "O!O(LLLL)(LLLLL)OOO", &PyList_Type, &list, &template, &n[0], &n[1], &n[2], &n[3],
                          &n[4], &n[5], &n[6], &n[7], &n[8], &numbers, &lists, &flat))
        return NULL;
    const Numbers at = {.body_bytes = n[0], .num_rows = n[1],    .nodes = n[2],      .buffers = n[3], .slots = n[4],
                        .width = n[5],      .most_tokens = n[6], .vocab_size = n[7], .stride = n[8]};
    const Py_ssize_t count = PyList_Size(list);
    Py_buffer *blocks = malloc((size_t)(count + 1) * sizeof *blocks);
    if (!blocks) return PyErr_NoMemory();
    Py_ssize_t taken = 0, put = -1;
    Held held = {.count = 0};
    while (taken < count && PyObject_GetBuffer(PyList_GetItem(list, taken), &blocks[taken], PyBUF_C_CONTIGUOUS) == 0) taken++;
    if (taken < count || take(&held, template, 0) < 0 || take(&held, numbers, 0) < 0 ||
        take_all(&held, lists, NUM_LISTS) < 0 || take_all(&held, flat, NUM_FLAT) < 0)
        goto done;
    if (held.views[1].len != 24 * count) {
        PyErr_SetString(PyExc_ValueError, "put_stored: expected three numbers of 8 bytes for each block");
        goto done;
    }
    void *context = spare_context;
    spare_context = NULL;
    Py_BEGIN_ALLOW_THREADS
    if (!context && is_usable) context = create_context();
    put = context ? put_all(blocks, count, &held, at, context) : 0;
    Py_END_ALLOW_THREADS
    if (!spare_context)
        spare_context = context;
    else if (context)
        free_context(context);
done:
    release(&held);
    while (taken > 0) PyBuffer_Release(&blocks[--taken]);
    free(blocks);
    return put < 0 ? NULL : PyLong_FromSsize_t(put);
}

static PyMethodDef methods[] = {
    {"put_stored", put_stored, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static int set_up(PyObject *module) {
    find_zstd();
    return PyModule_AddIntConstant(module, "IS_USABLE", is_usable);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, set_up}, {0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "trainer.stream._blocks", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__blocks(void) { return PyModuleDef_Init(&module); }
