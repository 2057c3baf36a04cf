/* MT19937's seeding and refilling, as in CPython's Modules/_randommodule.c. */
#include "random.h"

#include <string.h>

static uint32_t mix(const uint32_t *words, int at)
{
    return words[at - 1] ^ (words[at - 1] >> 30);
}

static uint32_t unseeded[TWISTER_WORDS]; /* where every seeding by an array begins */

void twister_prepare(void)
{
    unseeded[0] = 19650218u;
    for (int i = 1; i < TWISTER_WORDS; i++)
        unseeded[i] = 1812433253u * mix(unseeded, i) + (uint32_t)i;
}

void twister_seed(twister *state, const uint32_t *key, size_t num_digits)
{
    uint32_t *words = state->words;
    memcpy(words, unseeded, sizeof unseeded);
    int i = 1;
    size_t digit = 0;
    for (size_t left = num_digits > TWISTER_WORDS ? num_digits : TWISTER_WORDS; left; left--) {
        words[i] = (words[i] ^ (mix(words, i) * 1664525u)) + key[digit] + (uint32_t)digit;
        if (++digit == num_digits)
            digit = 0;
        if (++i == TWISTER_WORDS) {
            words[0] = words[TWISTER_WORDS - 1];
            i = 1;
        }
    }
    for (int left = TWISTER_WORDS - 1; left; left--) {
        words[i] = (words[i] ^ (mix(words, i) * 1566083941u)) - (uint32_t)i;
        if (++i == TWISTER_WORDS) {
            words[0] = words[TWISTER_WORDS - 1];
            i = 1;
        }
    }
    words[0] = 0x80000000u;
    state->next = TWISTER_WORDS;
}

static uint32_t twist(uint32_t word, uint32_t following, uint32_t distant)
{
    uint32_t joined = (word & 0x80000000u) | (following & 0x7fffffffu);
    return distant ^ (joined >> 1) ^ (-(joined & 1u) & 0x9908b0dfu);
}

void twister_refill(twister *state)
{
    uint32_t *words = state->words;
    const int near = TWISTER_WORDS - TWISTER_SHIFT;
    for (int i = 0; i < near; i++)
        words[i] = twist(words[i], words[i + 1], words[i + TWISTER_SHIFT]);
    for (int i = near; i < TWISTER_WORDS - 1; i++)
        words[i] = twist(words[i], words[i + 1], words[i - near]);
    words[TWISTER_WORDS - 1] = twist(words[TWISTER_WORDS - 1], words[0], words[TWISTER_SHIFT - 1]);
    state->next = 0;
}
