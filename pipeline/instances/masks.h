/* The compiled twin of pipeline.instances.masking._choose_tokens. */
#ifndef BEAMBERT_MASKS_H
#define BEAMBERT_MASKS_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_INSTANCE_TOKENS 65535

/* N packed instances, and what their keys are drawn by. */
typedef struct {
    const int64_t *offsets;           /* [N + 1] */
    const uint16_t *segment_a_length; /* [N] */
    const int64_t *counts;            /* [N] positions to mask */
    const uint64_t *seeds;            /* [N] */
    const uint64_t *firsts;           /* [N] which of the seed's keys is the first of the instance */
    const uint8_t *position_bits;     /* [N] low bits of keys that hold the position */
} mask_rows;

/* pipeline.seeds.words_at. */
static inline uint64_t word_at(uint64_t seed, uint64_t place)
{
    uint64_t word = seed + (place + 1) * 0x9E3779B97F4A7C15u;
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
    word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
    return word ^ (word >> 31);
}

static bool is_instance(const mask_rows *rows, int64_t n)
{
    int64_t length = rows->offsets[n + 1] - rows->offsets[n], a_length = rows->segment_a_length[n];
    return rows->offsets[n] >= 0 && length > 3 && length <= MAX_INSTANCE_TOKENS && a_length > 1
           && a_length < length && rows->counts[n] > 0 && rows->counts[n] <= length - 3
           && rows->position_bits[n] <= 16 && (length - 1) >> rows->position_bits[n] == 0;
}

/* Writes where instance n's tokens with the smallest keys lie, ascending, and one number more;
 * returns the end of them. `keys` is room for those of an instance and one. */
static int64_t *choose_in(const mask_rows *rows, int64_t n, uint32_t *keys, int64_t *chosen)
{
    int64_t start = rows->offsets[n], last = rows->offsets[n + 1] - start - 1;
    int64_t separator = rows->segment_a_length[n] - 1, left = rows->counts[n], position = 0;
    uint64_t seed = rows->seeds[n], place = rows->firsts[n];
    uint32_t histogram[256] = {0}, bucket = 0, greatest = 0;
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
    for (position = 1; position < last; position++)
        histogram[keys[position] >> 24]++;
    while (histogram[bucket] < left)
        left -= histogram[bucket++];
    for (; left; left--) { /* the next greater key of the bucket */
        uint32_t next = UINT32_MAX, low = greatest > bucket << 24 ? greatest + 1 : bucket << 24;
        for (position = 1; position < last; position++) {
            uint32_t key = keys[position] < low ? UINT32_MAX : keys[position];
            next = key < next ? key : next;
        }
        greatest = next;
    }
    for (position = 1; position < last; position++) {
        *chosen = start + position;
        chosen += keys[position] <= greatest;
    }
    return chosen;
}

/* Whether all rows are instances, whose counts fill all but one of the `room` positions. */
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
