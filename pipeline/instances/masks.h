/* The compiled twin of _choose_tokens in pipeline/instances/masking.py. */
#ifndef BEAMBERT_MASKS_H
#define BEAMBERT_MASKS_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_INSTANCE_TOKENS 65535

/* N packed instances, and the seeds of their keys (`Keys` in masking.py). */
typedef struct {
    const int64_t *offsets;           /* [N + 1] first token of each instance */
    const uint16_t *segment_a_length; /* [N] tokens of [CLS] A [SEP], without B all of them */
    const int64_t *counts;            /* [N] number of positions to mask */
    const uint64_t *seeds;            /* [N] */
    const uint64_t *firsts;           /* [N] number of the seed's key that is the first token's */
    const uint8_t *position_bits;     /* [N] number of low bits of a key that hold the position */
} mask_rows;

/* `words_at` of pipeline/seeds.py, for one word. */
static inline uint64_t word_at(uint64_t seed, uint64_t place)
{
    uint64_t word = seed + (place + 1) * 0x9E3779B97F4A7C15u;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

/* Returns whether the numbers of instance n are possible. */
static bool is_instance(const mask_rows *rows, int64_t n)
{
    int64_t start = rows->offsets[n], end = rows->offsets[n + 1];
    if (start < 0 || end < start) /* checked first, as the difference may overflow */
        return false;
    int64_t length = end - start, a_length = rows->segment_a_length[n];
    int64_t num_specials = a_length < length ? 3 : 2;
    return length > num_specials && length <= MAX_INSTANCE_TOKENS && a_length > 1
           && a_length <= length && rows->counts[n] > 0
           && rows->counts[n] <= length - num_specials && rows->position_bits[n] <= 16
           && (length - 1) >> rows->position_bits[n] == 0;
}

/* Returns a limit for which exactly `count` of the keys are smaller.
 *
 * Of the keys, `num_real` differ and are smaller than the greatest number, which the others are.
 * The limit is searched for by interpolation, because keys are spread almost evenly. */
static uint32_t find_limit(const uint32_t *keys, uint32_t length, uint32_t num_real, uint32_t count)
{
    uint64_t low = 0, high = UINT32_MAX;
    uint32_t below_low = 0, below_high = num_real;
    for (int tries = 1; below_high != count; tries++) {
        uint64_t step = (high - low) * (count - below_low) / (below_high - below_low);
        uint64_t limit = low + (tries % 4 == 0 ? (high - low) / 2 : step ? step : 1);
        uint32_t below = 0;
        for (uint32_t i = 0; i < length; i++)
            below += keys[i] < (uint32_t)limit;
        if (below < count)
            low = limit, below_low = below;
        else
            high = limit, below_high = below;
    }
    return (uint32_t)high;
}

/* Writes the indices of instance n's tokens with the smallest keys, ascending, and returns their
 * end. One number more may be written there. `keys` has room for the keys of an instance and
 * one. */
static int64_t *choose_in(const mask_rows *rows, int64_t n, uint32_t *keys, int64_t *chosen)
{
    int64_t start = rows->offsets[n], last = rows->offsets[n + 1] - start - 1;
    int64_t separator = rows->segment_a_length[n] - 1, count = rows->counts[n], position = 0;
    uint64_t seed = rows->seeds[n], place = rows->firsts[n];
    if (place % 2)
        keys[position++] = (uint32_t)(word_at(seed, place++ / 2) >> 32);
    for (; position < last; position += 2, place += 2) {
        uint64_t word = word_at(seed, place / 2);
        keys[position] = (uint32_t)word;
        keys[position + 1] = (uint32_t)(word >> 32);
    }
    for (int bits = rows->position_bits[n]; --position;)
        keys[position] = keys[position] >> bits << bits | (uint32_t)position;
    keys[separator] = keys[0] = UINT32_MAX; /* specials are not chosen */
    uint32_t inside = (uint32_t)last - 1, num_real = inside - (separator < last);
    uint32_t limit = find_limit(keys + 1, inside, num_real, (uint32_t)count);
    for (position = 1; position < last; position++) {
        *chosen = start + position;
        chosen += keys[position] < limit;
    }
    return chosen;
}

/* Chooses tokens of all rows. Returns whether all rows are possible instances, and whether their
 * counts fill `room` - 1 positions. */
static bool choose_in_rows(const mask_rows *rows, int64_t num_rows, int64_t *chosen, int64_t room)
{
    uint32_t keys[MAX_INSTANCE_TOKENS + 1];
    for (int64_t n = 0; n < num_rows; n++) {
        if (!is_instance(rows, n) || rows->counts[n] >= room)
            return false;
        room -= rows->counts[n];
        chosen = choose_in(rows, n, keys, chosen);
    }
    return room == 1;
}

#endif
