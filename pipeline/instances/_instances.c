/* pipeline.instances._instances: arrays of pipeline.instances.pairs and pipeline.instances.masking, checked, to the compiled twins of their loops.
 *
 * Arrays come as buffers of the dtypes that pipeline/instances/compiled.py gives. Nothing is read or written outside
 * them, whatever they hold: what does not fit is a ValueError. The interpreter lock is let go while the loops run.
 */
#include "native/arguments.h"
#include "native/masks.h"
#include "native/pairs.h"
#include "native/random.h"

#define MAX_BUFFERS 11

static bool are_sentences(const Py_buffer *bounds, const Py_buffer *firsts, sentences *all)
{
    if (!holds(bounds, 8, -1, "bounds") || !holds(firsts, 8, -1, "firsts"))
        return false;
    Py_ssize_t num_bounds = bounds->len / 8, num_firsts = firsts->len / 8;
    if (num_bounds < 2 || num_firsts < 3 || num_bounds > INT32_MAX)
        return refuse("at least 2 documents of 1 sentence are needed, and fewer than 2**31 sentences");
    *all = (sentences){bounds->buf, firsts->buf, num_firsts - 1};
    if (!ascends(all->bounds, num_bounds, 0, 1, INT32_MAX))
        return refuse("bounds of sentences do not ascend from 0");
    if (!ascends(all->firsts, num_firsts, 0, 1, INT32_MAX) || all->firsts[num_firsts - 1] != num_bounds - 1)
        return refuse("first sentences of documents do not ascend from 0 to the number of sentences");
    return true;
}

static bool are_columns(Py_buffer *arrays, bool with_documents, pair_columns *out)
{
    static const char *names[] = {"a_start", "a_stop", "b_start", "b_stop"};
    if (!holds(&arrays[0], 8, -1, names[0]))
        return false;
    Py_ssize_t capacity = arrays[0].len / 8;
    for (int i = 1; i < 4; i++)
        if (!holds(&arrays[i], 8, capacity, names[i]))
            return false;
    *out = (pair_columns){NULL, arrays[0].buf, arrays[1].buf, NULL, arrays[2].buf, arrays[3].buf, NULL, 0, capacity};
    if (!with_documents)
        return true;
    out->document_a = arrays[4].buf;
    out->document_b = arrays[5].buf;
    out->is_random_next = arrays[6].buf;
    return holds(&arrays[4], 4, capacity, "document_a") && holds(&arrays[5], 4, capacity, "document_b")
           && holds(&arrays[6], 1, capacity, "is_random_next");
}

static bool are_rows(const Py_buffer *rows, const sentences *all, int64_t capacity)
{
    if (!holds(rows, 8, -1, "rows"))
        return false;
    const int64_t *values = rows->buf;
    int64_t needed = 0;
    for (Py_ssize_t i = 0; i < rows->len / 8; i++) {
        if (values[i] < 0 || values[i] >= all->num_documents)
            return refuse("a row is no document");
        needed += all->firsts[values[i] + 1] - all->firsts[values[i]];
        if (needed > capacity) /* a pair takes one sentence of its document at least */
            return refuse("there is no room for the pairs of all rows");
    }
    return true;
}

static PyObject *make_pairs(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer arrays[MAX_BUFFERS];
    Py_ssize_t seed_digits, max_tokens;
    double short_seq_prob;
    long long exact_tokens;
    if (!PyArg_ParseTuple(args, "y*y*y*y*nndLw*w*w*w*w*w*w*", &arrays[0], &arrays[1], &arrays[2], &arrays[3],
                          &seed_digits, &max_tokens, &short_seq_prob, &exact_tokens, &arrays[4], &arrays[5],
                          &arrays[6], &arrays[7], &arrays[8], &arrays[9], &arrays[10]))
        return NULL;
    sentences all;
    pair_columns out;
    Py_ssize_t num_rows = arrays[2].len / 8;
    bool fits = are_sentences(&arrays[0], &arrays[1], &all) && are_columns(&arrays[4], true, &out)
                && are_rows(&arrays[2], &all, out.capacity);
    if (fits && (max_tokens < 2 || max_tokens > MAX_INSTANCE_TOKENS || seed_digits < 1 || seed_digits > 1 << 20))
        fits = refuse("a length or the size of the seeds is out of range");
    if (!fits || !holds(&arrays[3], 4, num_rows * seed_digits, "seeds"))
        return release(arrays, 11, NULL);
    pair_rule rule = {max_tokens, short_seq_prob};
    nsp_balance balance = {exact_tokens >= 0, 0.5, exact_tokens, 0, 0, 0};
    Py_BEGIN_ALLOW_THREADS
    pair_documents(&all, arrays[2].buf, num_rows, arrays[3].buf, seed_digits, &rule, &balance, &out);
    Py_END_ALLOW_THREADS
    return release(arrays, 11, PyLong_FromLongLong(out.count));
}

static bool are_spans(const pair_columns *pairs, const int64_t *offsets, int64_t num_tokens, int64_t room)
{
    if (offsets[0] != 0)
        return refuse("offsets do not begin at 0");
    for (int64_t i = 0; i < pairs->capacity; i++) {
        bool within = 0 <= pairs->a_start[i] && pairs->a_start[i] <= pairs->a_stop[i] && pairs->a_stop[i] <= num_tokens
                      && 0 <= pairs->b_start[i] && pairs->b_start[i] <= pairs->b_stop[i]
                      && pairs->b_stop[i] <= num_tokens;
        if (!within)
            return refuse("a segment lies outside the tokens");
        int64_t length = pairs->a_stop[i] - pairs->a_start[i] + pairs->b_stop[i] - pairs->b_start[i] + 3;
        if (offsets[i] > room - length || offsets[i + 1] != offsets[i] + length)
            return refuse("offsets are not those of the segments");
    }
    return true;
}

static PyObject *gather_pairs(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer arrays[MAX_BUFFERS];
    int item_bytes;
    unsigned int cls_id, sep_id;
    if (!PyArg_ParseTuple(args, "y*iy*y*y*y*IIy*w*", &arrays[0], &item_bytes, &arrays[1], &arrays[2], &arrays[3],
                          &arrays[4], &cls_id, &sep_id, &arrays[5], &arrays[6]))
        return NULL;
    pair_columns pairs;
    bool fits = item_bytes == 2 || item_bytes == 4 || refuse("tokens have neither 2 nor 4 bytes");
    fits = fits && are_columns(&arrays[1], false, &pairs) && holds(&arrays[5], 8, pairs.capacity + 1, "offsets")
           && holds(&arrays[0], (size_t)item_bytes, -1, "tokens") && holds(&arrays[6], (size_t)item_bytes, -1, "out")
           && are_spans(&pairs, arrays[5].buf, arrays[0].len / item_bytes, arrays[6].len / item_bytes);
    if (!fits)
        return release(arrays, 7, NULL);
    pairs.count = pairs.capacity;
    Py_BEGIN_ALLOW_THREADS
    gather_instances(arrays[0].buf, item_bytes, &pairs, cls_id, sep_id, arrays[5].buf, arrays[6].buf);
    Py_END_ALLOW_THREADS
    Py_INCREF(Py_None);
    return release(arrays, 7, Py_None);
}

static bool are_instances(Py_buffer *arrays, mask_run *run, int64_t num_ids, int64_t *num_masked)
{
    if (!holds(&arrays[0], 8, -1, "offsets") || !arrays[0].len)
        return PyErr_Occurred() ? false : refuse("offsets are missing");
    Py_ssize_t num_instances = arrays[0].len / 8 - 1;
    if (!holds(&arrays[1], 2, num_instances, "segment_a_length") || !holds(&arrays[2], 8, num_instances, "counts"))
        return false;
    *run = (mask_run){num_instances, arrays[0].buf, arrays[1].buf, arrays[2].buf};
    if (!ascends(run->offsets, num_instances + 1, 0, 4, MAX_INSTANCE_TOKENS) || run->offsets[num_instances] > num_ids)
        return refuse("offsets do not ascend from 0 by 4 to 65,535 tokens an instance, or not within the tokens");
    *num_masked = 0;
    for (Py_ssize_t i = 0; i < num_instances; i++) {
        int64_t length = run->offsets[i + 1] - run->offsets[i];
        if (run->segment_a_length[i] < 2 || run->segment_a_length[i] >= length)
            return refuse("a segment A reaches past its instance");
        if (run->counts[i] < 1 || run->counts[i] > length - 3)
            return refuse("a count is not from 1 to the tokens that may be masked");
        *num_masked += run->counts[i];
    }
    return true;
}

/* Whether every id can be looked up: is_continuation is empty where whole words are not asked for. */
static bool are_ids(const Py_buffer *ids, int item_bytes, int64_t num_ids, const Py_buffer *is_continuation)
{
    for (int64_t i = 0; is_continuation->len && i < num_ids; i++) {
        uint32_t id = item_bytes == 2 ? ((const uint16_t *)ids->buf)[i] : ((const uint32_t *)ids->buf)[i];
        if ((Py_ssize_t)id >= is_continuation->len)
            return refuse("an id is not in the vocabulary");
    }
    return true;
}

static PyObject *mask_instances(PyObject *self, PyObject *args)
{
    (void)self;
    Py_buffer arrays[MAX_BUFFERS];
    int item_bytes;
    Py_ssize_t grid_rows;
    unsigned int mask_id, vocab_size;
    if (!PyArg_ParseTuple(args, "w*iy*y*y*ny*y*IIw*w*w*", &arrays[0], &item_bytes, &arrays[1], &arrays[2], &arrays[3],
                          &grid_rows, &arrays[4], &arrays[5], &mask_id, &vocab_size, &arrays[6], &arrays[7],
                          &arrays[8]))
        return NULL;
    mask_run run;
    int64_t num_masked = 0, num_ids = item_bytes > 0 ? arrays[0].len / item_bytes : 0;
    bool fits = item_bytes == 2 || item_bytes == 4 || refuse("tokens have neither 2 nor 4 bytes");
    fits = fits && holds(&arrays[0], (size_t)item_bytes, -1, "input_ids")
           && are_instances(&arrays[1], &run, num_ids, &num_masked)
           && are_ids(&arrays[0], item_bytes, num_ids, &arrays[5]);
    bool whole_words = arrays[5].len > 0;
    if (fits && grid_rows < 1)
        fits = refuse("a grid has no rows");
    if (fits) {
        Py_ssize_t num_bases = whole_words ? 1 : (run.num_instances + grid_rows - 1) / grid_rows;
        fits = holds(&arrays[4], 8, num_bases + 1, "bases") && holds(&arrays[6], 8, run.num_instances + 1, "offsets")
               && holds(&arrays[7], 2, num_masked + 1, "positions")
               && holds(&arrays[8], (size_t)item_bytes, num_masked, "labels");
    }
    if (!fits)
        return release(arrays, 9, NULL);
    const uint64_t *bases = arrays[4].buf;
    mask_choice chosen = {arrays[6].buf, arrays[7].buf};
    bool has_memory;
    Py_BEGIN_ALLOW_THREADS
    if (whole_words)
        has_memory = choose_words(&run, arrays[0].buf, item_bytes, arrays[5].buf, bases[0], &chosen);
    else
        has_memory = choose_tokens(&run, bases, grid_rows, &chosen);
    if (has_memory)
        replace_tokens(&run, &chosen, bases[arrays[4].len / 8 - 1], mask_id, vocab_size, arrays[0].buf, item_bytes,
                       arrays[8].buf);
    Py_END_ALLOW_THREADS
    if (!has_memory)
        return release(arrays, 9, PyErr_NoMemory());
    return release(arrays, 9, PyLong_FromLongLong(chosen.offsets[run.num_instances]));
}

static int prepare(PyObject *self)
{
    (void)self;
    twister_prepare();
    return 0;
}

static PyMethodDef methods[] = {
    {"make_pairs", make_pairs, METH_VARARGS, "Fills columns with the pairs of documents; returns their number."},
    {"gather_pairs", gather_pairs, METH_VARARGS, "Fills an array with the tokens of pairs."},
    {"mask_instances", mask_instances, METH_VARARGS, "Masks instances in place; returns the number of positions."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "pipeline.instances._instances", "Compiled loops of pipeline.instances.pairs and pipeline.instances.masking.", 0, methods,
    slots,                 NULL,                  NULL,                                                     NULL,
};

PyMODINIT_FUNC PyInit__instances(void)
{
    return PyModuleDef_Init(&module);
}
