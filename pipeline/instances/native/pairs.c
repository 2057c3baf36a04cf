/* The walk over sentences and its draws, docs/parity.md 1.2-1.8, and the gathering of the spans it finds. */
#include "pairs.h"

#include <string.h>

#include "random.h"

#define MAX_TRIES 10  /* docs/parity.md 1.6 */
#define FREE_PAIRS 64 /* docs/parity.md 5 */

typedef struct {
    int64_t start, stop;
} span;

/* The first sentence from `first` on that begins `target` tokens or more after `start`; `end` where none does. */
static int64_t find_end(const int64_t *bounds, int64_t start, int64_t target, int64_t first, int64_t end)
{
    while (first < end && bounds[first] < start + target)
        first++;
    return first;
}

static span draw_random_b(const sentences *all, int64_t document, int64_t target, twister *rng, int64_t *other)
{
    for (int i = 0; i < MAX_TRIES; i++) {
        *other = twister_below(rng, (uint32_t)all->num_documents);
        if (*other != document)
            break;
    }
    if (*other == document) /* docs/parity.md 5: the reference takes the document itself */
        *other = (document + 1) % all->num_documents;
    int64_t first = all->firsts[*other], end = all->firsts[*other + 1];
    first += twister_below(rng, (uint32_t)(end - first));
    int64_t start = all->bounds[first];
    return (span){start, all->bounds[find_end(all->bounds, start, target, first + 1, end)]};
}

/* Cuts one token after the other off the longer segment, B where they are equal (docs/parity.md 1.8). */
static void truncate_pair(span *a, span *b, int64_t max_tokens, twister *rng)
{
    int64_t a_length = a->stop - a->start, b_length = b->stop - b->start;
    for (int64_t left = a_length + b_length - max_tokens; left > 0; left--) {
        int64_t is_back = twister_word(rng) >> 31; /* random() >= 0.5, and its second word, which does not matter */
        twister_word(rng);
        bool is_a = a_length > b_length;
        span *victim = is_a ? a : b;
        victim->start += 1 - is_back;
        victim->stop -= is_back;
        a_length -= is_a;
        b_length -= !is_a;
    }
}

static void count_pair(nsp_balance *balance, bool is_random, bool is_forced, int64_t num_tokens, int64_t max_tokens)
{
    balance->tokens_left -= num_tokens;
    balance->num_pairs++;
    balance->num_forced += is_forced;
    balance->excess += is_random ? 1 : -1;
    double forced = (double)balance->num_forced / (double)(balance->num_pairs + FREE_PAIRS);
    int64_t pairs_left = balance->tokens_left / max_tokens;
    double wanted = 0.5 - (double)balance->excess / (double)(2 * (pairs_left > 1 ? pairs_left : 1));
    balance->chance = (wanted - forced) / (1 - forced);
}

static void append(pair_columns *out, int64_t document_a, span a, int64_t document_b, span b, bool is_random)
{
    int64_t row = out->count++;
    out->document_a[row] = (int32_t)document_a;
    out->a_start[row] = a.start;
    out->a_stop[row] = a.stop;
    out->document_b[row] = (int32_t)document_b;
    out->b_start[row] = b.start;
    out->b_stop[row] = b.stop;
    out->is_random_next[row] = is_random;
}

static void pair_document(const sentences *all, int64_t document, const pair_rule *rule, twister *rng,
                          nsp_balance *balance, pair_columns *out)
{
    const int64_t *bounds = all->bounds;
    int64_t target = rule->max_tokens;
    if (twister_random(rng) < rule->short_seq_prob)
        target = 2 + twister_below(rng, (uint32_t)(rule->max_tokens - 1));
    int64_t sentence = all->firsts[document], end = all->firsts[document + 1];
    int64_t walked = bounds[sentence];
    while (sentence < end && out->count < out->capacity) {
        span a = {bounds[sentence], 0}, b;
        int64_t chunk_end = find_end(bounds, a.start, target, sentence + 1, end);
        int64_t a_end = sentence + 1, document_b = document;
        bool is_forced = chunk_end == a_end, is_random = is_forced;
        if (!is_forced) {
            a_end += twister_below(rng, (uint32_t)(chunk_end - a_end));
            is_random = twister_random(rng) < balance->chance;
        }
        a.stop = bounds[a_end];
        if (is_random) {
            b = draw_random_b(all, document, target - (a.stop - a.start), rng, &document_b);
            sentence = a_end; /* the rest of the chunk is put back */
        } else {
            b = (span){a.stop, bounds[chunk_end]};
            sentence = chunk_end;
        }
        truncate_pair(&a, &b, rule->max_tokens, rng);
        append(out, document, a, document_b, b, is_random);
        if (balance->is_exact)
            count_pair(balance, is_random, is_forced, bounds[sentence] - walked, rule->max_tokens);
        walked = bounds[sentence];
    }
}

void pair_documents(const sentences *all, const int64_t *rows, int64_t num_rows, const uint32_t *seeds,
                    int64_t seed_digits, const pair_rule *rule, nsp_balance *balance, pair_columns *out)
{
    twister rng;
    for (int64_t row = 0; row < num_rows; row++) {
        const uint32_t *seed = seeds + row * seed_digits;
        size_t num_digits = (size_t)seed_digits;
        while (num_digits > 1 && !seed[num_digits - 1])
            num_digits--;
        twister_seed(&rng, seed, num_digits);
        pair_document(all, rows[row], rule, &rng, balance, out);
    }
}

/* Segments lie anywhere in the bucket's tokens; asked for this many instances ahead, they are there when copied. */
#define AHEAD 8

static inline void prefetch(const void *place)
{
#ifdef __GNUC__
    __builtin_prefetch(place);
#else
    (void)place;
#endif
}

static char *put_id(char *out, int item_bytes, uint32_t id)
{
    uint16_t half = (uint16_t)id;
    memcpy(out, item_bytes == 2 ? (const void *)&half : (const void *)&id, (size_t)item_bytes);
    return out + item_bytes;
}

static char *put_span(char *out, int item_bytes, const char *tokens, int64_t start, int64_t stop)
{
    size_t num_bytes = (size_t)((stop - start) * item_bytes);
    memcpy(out, tokens + start * item_bytes, num_bytes);
    return out + num_bytes;
}

void gather_instances(const void *tokens, int item_bytes, const pair_columns *pairs, uint32_t cls_id, uint32_t sep_id,
                      const int64_t *offsets, void *out)
{
    for (int64_t row = 0; row < pairs->count; row++) {
        if (row + AHEAD < pairs->count) {
            prefetch((const char *)tokens + pairs->a_start[row + AHEAD] * item_bytes);
            prefetch((const char *)tokens + pairs->b_start[row + AHEAD] * item_bytes);
        }
        char *next = put_id((char *)out + offsets[row] * item_bytes, item_bytes, cls_id);
        next = put_span(next, item_bytes, tokens, pairs->a_start[row], pairs->a_stop[row]);
        next = put_id(next, item_bytes, sep_id);
        next = put_span(next, item_bytes, tokens, pairs->b_start[row], pairs->b_stop[row]);
        put_id(next, item_bytes, sep_id);
    }
}
