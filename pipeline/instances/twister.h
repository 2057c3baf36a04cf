/* Draws the same random numbers as CPython's random.Random, bit for bit: MT19937 (Matsumoto and
 * Nishimura, 1998). */
#ifndef BEAMBERT_TWISTER_H
#define BEAMBERT_TWISTER_H

#include <stdint.h>

#define TWISTER_WORDS 624
#define TWISTER_SHIFT 397
#define TWISTER_BACK (TWISTER_WORDS - TWISTER_SHIFT)

typedef struct {
    uint32_t words[TWISTER_WORDS];
    int next;
} twister;

/* Returns word `at` - 1 mixed with its own upper bits, a step of seeding. */
static inline uint32_t twister_mix(const uint32_t *words, int at)
{
    return words[at - 1] ^ (words[at - 1] >> 30);
}

/* Returns the number of the word after word i in a seeding, which goes round without word 0. */
static inline int twister_after(uint32_t *words, int i)
{
    if (i + 1 < TWISTER_WORDS)
        return i + 1;
    words[0] = words[TWISTER_WORDS - 1];
    return 1;
}

/* Seeds the generator like random.Random(seed). `key` has the 32-bit digits of the seed, the lowest
 * first. */
static void twister_seed(twister *state, const uint32_t *key, uint32_t num_digits)
{
    uint32_t *words = state->words;
    words[0] = 19650218u;
    for (int i = 1; i < TWISTER_WORDS; i++)
        words[i] = 1812433253u * twister_mix(words, i) + (uint32_t)i;
    int i = 1;
    uint32_t digit = 0;
    for (int left = TWISTER_WORDS; left; left--, i = twister_after(words, i)) {
        words[i] = (words[i] ^ (twister_mix(words, i) * 1664525u)) + key[digit] + digit;
        digit = digit + 1 < num_digits ? digit + 1 : 0;
    }
    for (int left = TWISTER_WORDS - 1; left; left--, i = twister_after(words, i))
        words[i] = (words[i] ^ (twister_mix(words, i) * 1566083941u)) - (uint32_t)i;
    words[0] = 0x80000000u;
    state->next = TWISTER_WORDS;
}

/* Makes the next 624 words. */
static void twister_refill(twister *state)
{
    uint32_t *words = state->words;
    for (int i = 0; i < TWISTER_WORDS; i++) {
        int next = i + 1 < TWISTER_WORDS ? i + 1 : 0;
        int distant = i + TWISTER_SHIFT < TWISTER_WORDS ? i + TWISTER_SHIFT : i - TWISTER_BACK;
        uint32_t joined = (words[i] & 0x80000000u) | (words[next] & 0x7fffffffu);
        words[i] = words[distant] ^ (joined >> 1) ^ (-(joined & 1u) & 0x9908b0dfu);
    }
    state->next = 0;
}

/* Returns 32 random bits: random.getrandbits(32). */
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

/* Returns a number from 0 to 1 like random.random(). */
static inline double twister_random(twister *state)
{
    uint32_t high = twister_word(state) >> 5, low = twister_word(state) >> 6;
    return (high * 67108864.0 + low) * (1.0 / 9007199254740992.0);
}

/* `draw_below` of pipeline/seeds.py, for 0 < limit < 2**31. */
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

#endif
