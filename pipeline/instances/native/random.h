/* The two sources of draws, bit for bit those of pipeline.seeds and of CPython's random.Random. */
#ifndef BEAMBERT_RANDOM_H
#define BEAMBERT_RANDOM_H

#include <stddef.h>
#include <stdint.h>

#define TWISTER_WORDS 624
#define TWISTER_SHIFT 397

/* MT19937 (Matsumoto and Nishimura, 1998). */
typedef struct {
    uint32_t words[TWISTER_WORDS];
    int next;
} twister;

/* Called once, before any seeding. */
void twister_prepare(void);

/* As random.Random(seed): key holds the 32-bit digits of abs(seed), the lowest first, num_digits as without zeros. */
void twister_seed(twister *state, const uint32_t *key, size_t num_digits);

/* Makes the next 624 words. */
void twister_refill(twister *state);

static inline uint32_t twister_word(twister *state)
{
    if (state->next == TWISTER_WORDS)
        twister_refill(state);
    uint32_t word = state->words[state->next++];
    word ^= word >> 11;
    word ^= (word << 7) & 0x9d2c5680u;
    word ^= (word << 15) & 0xefc60000u;
    return word ^ (word >> 18);
}

/* random.random(). */
static inline double twister_random(twister *state)
{
    uint32_t high = twister_word(state) >> 5, low = twister_word(state) >> 6;
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

/* pipeline.seeds.draw_below for 0 < limit < 2**31. */
static inline uint32_t twister_below(twister *state, uint32_t limit)
{
    int num_bits = 0;
    while (limit >> num_bits)
        num_bits++;
    uint32_t value;
    do
        value = twister_word(state) >> (32 - num_bits);
    while (value >= limit);
    return value;
}

/* Word `index` of pipeline.seeds.random_words whose 64 bits of the generator are `base`: SplitMix64. */
static inline uint64_t random_word(uint64_t base, uint64_t index)
{
    uint64_t word = base + (index + 1) * 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    return word ^ (word >> 31);
}

#endif
