/* Compiled twins of loops in pipeline/instances/pairs.py and masking.py. The Python code is the
 * definition, and its docstrings say what each function does.
 *
 * Arrays are passed as buffers, with the dtypes that are given there. Sizes are checked, and
 * nothing is written outside of a buffer.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <string.h>

#include "masks.h"
#include "twister.h"

#define NUM_ARRAYS 11
#define SEED_DIGITS 4 /* of 32 bits each */
#define MAX_TRIES 10  /* docs/parity.md 1.6 */
#define FREE_PAIRS 64 /* docs/parity.md 5 */

typedef struct {
    int64_t start, stop;
} span;

/* The state of pairing: S sentences of D documents, and the pairs that were made so far. */
typedef struct {
    const int64_t *bounds; /* [S + 1], first token of each sentence, and the number of tokens */
    const int64_t *firsts; /* [D + 1], first sentence of each document, and S */
    int64_t num_documents, max_tokens;
    double short_seq_prob, chance;
    bool is_exact; /* if true, the chance changes after each pair, as in _Balance of pairs.py */
    int64_t tokens_left, num_pairs, num_forced, excess; /* the fields of _Balance */
    int32_t *document_a, *document_b; /* the columns of Pairs, of which `count` rows are filled */
    int64_t *a_start, *a_stop, *b_start, *b_stop;
    uint8_t *is_random_next;
    int64_t count;
    twister rng;
} walk;

/* Returns where a chunk that begins with sentence `first` ends, one past its last sentence. It ends
 * with the sentence that brings it to `target` tokens, or before sentence `end`. */
static int64_t stop_at(const walk *w, int64_t first, int64_t end, int64_t target)
{
    int64_t sentence = first + 1, token = w->bounds[first] + target;
    while (sentence < end && w->bounds[sentence] < token)
        sentence++;
    return sentence;
}

/* Draws a random segment B, and sets the number of its document (docs/parity.md 1.6). */
static span draw_random_b(walk *w, int64_t document, int64_t target, int64_t *other)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        *other = twister_below(&w->rng, (uint32_t)w->num_documents);
        if (*other != document)
            break;
    }
    if (*other == document) /* docs/parity.md 5: the reference takes the document itself */
        *other = (document + 1) % w->num_documents;
    int64_t first = w->firsts[*other], end = w->firsts[*other + 1];
    first += twister_below(&w->rng, (uint32_t)(end - first));
    return (span){w->bounds[first], w->bounds[stop_at(w, first, end, target)]};
}

/* Cuts tokens off the longer segment until both fit; B counts as longer if both are equal (1.8). */
static void truncate_pair(walk *w, span *a, span *b)
{
    int64_t a_length = a->stop - a->start, b_length = b->stop - b->start;
    for (int64_t left = a_length + b_length - w->max_tokens; left > 0; left--) {
        bool is_front = twister_random(&w->rng) < 0.5, is_a = a_length > b_length;
        span *victim = is_a ? a : b;
        victim->start += is_front;
        victim->stop -= !is_front;
        a_length -= is_a;
        b_length -= !is_a;
    }
}

/* _Balance.count of pairs.py. */
static void count_pair(walk *w, bool is_random, bool is_forced, int64_t num_tokens)
{
    w->tokens_left -= num_tokens;
    w->num_pairs++;
    w->num_forced += is_forced;
    w->excess += is_random ? 1 : -1;
    double forced = (double)w->num_forced / (double)(w->num_pairs + FREE_PAIRS);
    int64_t pairs_left = w->tokens_left / w->max_tokens;
    double wanted = 0.5 - (double)w->excess / (double)(2 * (pairs_left > 1 ? pairs_left : 1));
    w->chance = (wanted - forced) / (1 - forced);
}

/* Appends a pair to the columns. */
static void append(walk *w, int64_t document_a, span a, int64_t document_b, span b, bool is_random)
{
    int64_t row = w->count++;
    w->document_a[row] = (int32_t)document_a;
    w->a_start[row] = a.start;
    w->a_stop[row] = a.stop;
    w->document_b[row] = (int32_t)document_b;
    w->b_start[row] = b.start;
    w->b_stop[row] = b.stop;
    w->is_random_next[row] = is_random;
}

/* Makes the pairs of one document (docs/parity.md 1.2-1.8). */
static void pair_document(walk *w, int64_t document)
{
    int64_t target = w->max_tokens;
    if (twister_random(&w->rng) < w->short_seq_prob)
        target = 2 + twister_below(&w->rng, (uint32_t)(w->max_tokens - 1));
    int64_t sentence = w->firsts[document], end = w->firsts[document + 1];
    while (sentence < end) {
        int64_t start = w->bounds[sentence], chunk_end = stop_at(w, sentence, end, target);
        int64_t a_end = sentence + 1, document_b = document;
        bool is_forced = chunk_end == a_end, is_random = is_forced;
        if (!is_forced) {
            a_end += twister_below(&w->rng, (uint32_t)(chunk_end - a_end));
            is_random = twister_random(&w->rng) < w->chance;
        }
        span a = {start, w->bounds[a_end]}, b = {a.stop, w->bounds[chunk_end]};
        if (is_random)
            b = draw_random_b(w, document, target - (a.stop - a.start), &document_b);
        sentence = is_random ? a_end : chunk_end; /* unused sentences are put back */
        truncate_pair(w, &a, &b);
        append(w, document, a, document_b, b, is_random);
        if (w->is_exact)
            count_pair(w, is_random, is_forced, w->bounds[sentence] - start);
    }
}

/* Makes the pairs of documents number `rows`, each with the generator of its own seed. */
static void pair_rows(walk *w, const int64_t *rows, Py_ssize_t num_rows, const uint32_t *seeds)
{
    for (Py_ssize_t row = 0; row < num_rows; row++, seeds += SEED_DIGITS) {
        uint32_t num_digits = SEED_DIGITS;
        while (num_digits > 1 && !seeds[num_digits - 1])
            num_digits--;
        twister_seed(&w->rng, seeds, num_digits);
        pair_document(w, rows[row]);
    }
}

/* Returns whether the sizes of arrays agree, rows are documents, and all pairs have room. */
static bool fit(const walk *w, const Py_buffer *arrays)
{
    static const Py_ssize_t column_bytes[] = {4, 8, 8, 4, 8, 8, 1};
    const int64_t *rows = arrays[2].buf;
    Py_ssize_t room = arrays[NUM_ARRAYS - 1].len, num_rows = arrays[2].len / 8;
    if (w->num_documents < 2 || w->firsts[w->num_documents] != arrays[0].len / 8 - 1
        || arrays[3].len != 4 * SEED_DIGITS * num_rows)
        return false;
    for (int i = 0; i < 7; i++)
        if (arrays[4 + i].len != column_bytes[i] * room)
            return false;
    for (Py_ssize_t i = 0; i < num_rows; i++) {
        if (rows[i] < 0 || rows[i] >= w->num_documents)
            return false;
        room -= w->firsts[rows[i] + 1] - w->firsts[rows[i]]; /* a pair uses a sentence or more */
    }
    return room >= 0;
}

static PyObject *make_pairs(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer a[NUM_ARRAYS];
    long long max_tokens, exact_tokens;
    double short_seq_prob;
    if (!PyArg_ParseTuple(args, "y*y*y*y*LdLw*w*w*w*w*w*w*", &a[0], &a[1], &a[2], &a[3],
                          &max_tokens, &short_seq_prob, &exact_tokens, &a[4], &a[5], &a[6], &a[7],
                          &a[8], &a[9], &a[10]))
        return NULL;
    walk w = {
        .bounds = a[0].buf, .firsts = a[1].buf, .num_documents = a[1].len / 8 - 1,
        .max_tokens = max_tokens, .short_seq_prob = short_seq_prob, .chance = 0.5,
        .is_exact = exact_tokens >= 0, .tokens_left = exact_tokens,
        .document_a = a[4].buf, .a_start = a[5].buf, .a_stop = a[6].buf,
        .document_b = a[7].buf, .b_start = a[8].buf, .b_stop = a[9].buf,
        .is_random_next = a[10].buf,
    };
    bool fits = fit(&w, a);
    Py_BEGIN_ALLOW_THREADS
    if (fits)
        pair_rows(&w, a[2].buf, a[2].len / 8, a[3].buf);
    Py_END_ALLOW_THREADS
    for (int i = 0; i < NUM_ARRAYS; i++)
        PyBuffer_Release(&a[i]);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "arrays of sentences and pairs do not fit");
    return PyLong_FromLongLong(w.count);
}

/* Writes the instances of pairs. Returns whether all spans are inside of the tokens, and whether
 * the instances fill `out` exactly.
 *
 * `spans` are those of A and B in turn, `specials` the ids of [CLS] and [SEP]. */
static bool gather(const Py_buffer *tokens, const Py_buffer *spans, const char *specials,
                   const Py_buffer *out)
{
    int64_t width = tokens->itemsize, num_tokens = tokens->len / width;
    const int64_t *span = spans->buf;
    char *to = out->buf, *end = to + out->len;
    for (Py_ssize_t left = spans->len / 16; left > 0; left--, span += 2) {
        bool is_a = left % 2 == 0;
        if (!is_a && span[0] == span[1]) /* there is no B */
            continue;
        if (span[0] < 0 || span[0] > span[1] || span[1] > num_tokens
            || (end - to) / width < span[1] - span[0] + 1 + is_a)
            return false;
        if (is_a) /* [CLS] */
            to = (char *)memcpy(to, specials, (size_t)width) + width;
        int64_t size = (span[1] - span[0]) * width;
        memcpy(to, (const char *)tokens->buf + span[0] * width, (size_t)size);
        to = (char *)memcpy(to + size, specials + width, (size_t)width) + width;
    }
    return to == end;
}

/* Releases buffers. Returns None, or sets a ValueError and returns NULL if they did not fit. */
static PyObject *finish(Py_buffer *arrays, int count, bool fits)
{
    for (int i = 0; i < count; i++)
        PyBuffer_Release(&arrays[i]);
    if (!fits)
        return PyErr_Format(PyExc_ValueError, "arrays of instances do not fit");
    Py_RETURN_NONE;
}

static PyObject *gather_pairs(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer a[4]; /* tokens, [N, 4] spans, [CLS] and [SEP], and the instances to write */
    if (!PyArg_ParseTuple(args, "y*y*y*w*", &a[0], &a[1], &a[2], &a[3]))
        return NULL;
    bool fits = a[2].len == 2 * a[0].itemsize && a[1].len % 32 == 0;
    Py_BEGIN_ALLOW_THREADS
    fits = fits && gather(&a[0], &a[1], a[2].buf, &a[3]);
    Py_END_ALLOW_THREADS
    return finish(a, 4, fits);
}

static PyObject *choose_tokens(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer a[7]; /* the fields of mask_rows, and the positions to write */
    if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*w*", &a[0], &a[1], &a[2], &a[3], &a[4], &a[5], &a[6]))
        return NULL;
    mask_rows rows = {a[0].buf, a[1].buf, a[2].buf, a[3].buf, a[4].buf, a[5].buf};
    Py_ssize_t count = a[5].len;
    bool fits = a[0].len == 8 * (count + 1) && a[1].len == 2 * count && a[2].len == 8 * count
                && a[3].len == 8 * count && a[4].len == 8 * count;
    Py_BEGIN_ALLOW_THREADS
    fits = fits && choose_in_rows(&rows, count, a[6].buf, a[6].len / 8);
    Py_END_ALLOW_THREADS
    return finish(a, 7, fits);
}

static PyMethodDef methods[] = {
    {"make_pairs", make_pairs, METH_VARARGS, "Fills columns with pairs; returns their number."},
    {"gather_pairs", gather_pairs, METH_VARARGS, "Fills an array with the tokens of pairs."},
    {"choose_tokens", choose_tokens, METH_VARARGS, "Fills an array with places of tokens to mask."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "pipeline.instances._instances", NULL, 0, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__instances(void)
{
    return PyModuleDef_Init(&module);
}
