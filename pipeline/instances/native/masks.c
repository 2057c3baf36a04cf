/* Which positions are masked and by what, docs/parity.md 2. */
#include "masks.h"

#include <stdlib.h>
#include <string.h>

#include "random.h"

#define NEVER UINT32_MAX /* greater than any key of a token that may be masked */
#define MASK_BELOW ((uint32_t)(8 * (UINT64_C(1) << 32) / 10))
#define KEEP_BELOW ((uint32_t)(9 * (UINT64_C(1) << 32) / 10))

typedef struct {
    uint64_t key;
    int32_t start, length, number;
} word;

static int64_t length_of(const mask_run *run, int64_t row)
{
    return run->offsets[row + 1] - run->offsets[row];
}

/* Keys of one instance, as pipeline.instances.masking._draw_keys; `first_key` of its first position in the grid. */
static void draw_keys(uint64_t base, uint64_t first_key, int position_bits, uint32_t length, uint32_t a_length,
                      uint32_t *keys)
{
    uint32_t position = 0;
    if (first_key & 1)
        keys[position++] = (uint32_t)(random_word(base, first_key >> 1) >> 32);
    for (uint64_t index = (first_key + 1) >> 1; position < length; index++) {
        uint64_t both = random_word(base, index);
        keys[position++] = (uint32_t)both;
        keys[position++] = (uint32_t)(both >> 32);
    }
    for (position = 0; position < length; position++)
        keys[position] = (keys[position] >> position_bits << position_bits) | position;
    keys[0] = keys[a_length - 1] = keys[length - 1] = NEVER;
}

static uint32_t count_below(const uint32_t *keys, uint32_t length, uint32_t limit)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < length; i++)
        count += keys[i] < limit;
    return count;
}

/* A number that exactly `count` of the keys are below. There is one: keys below NEVER are unique, and enough. */
static uint32_t find_limit(const uint32_t *keys, uint32_t length, uint32_t count)
{
    uint64_t low = 0, high = NEVER; /* fewer keys than count are below low, more below high */
    uint32_t below_low = 0, below_high = length - 3;
    for (int tries = 1; below_high != count; tries++) {
        uint64_t step = (high - low) * (count - below_low) / (below_high - below_low); /* keys are spread evenly */
        if (tries % 4 == 0)
            step = (high - low) / 2;
        uint64_t limit = low + (step ? step : 1);
        uint32_t below = count_below(keys, length, (uint32_t)limit);
        if (below < count) {
            low = limit;
            below_low = below;
        } else {
            high = limit;
            below_high = below;
        }
    }
    return (uint32_t)high;
}

/* Writes one position more than it chooses: without a branch, which would be mispredicted at each. */
static int64_t choose_in_row(const uint32_t *keys, uint32_t length, uint32_t limit, uint16_t *positions)
{
    int64_t count = 0;
    for (uint32_t position = 0; position < length; position++) {
        positions[count] = (uint16_t)position;
        count += keys[position] < limit;
    }
    return count;
}

bool choose_tokens(const mask_run *run, const uint64_t *bases, int64_t grid_rows, mask_choice *out)
{
    uint32_t *keys = malloc((MAX_INSTANCE_TOKENS + 2) * sizeof *keys); /* two keys are drawn at a time */
    if (!keys)
        return false;
    out->offsets[0] = 0;
    for (int64_t first = 0; first < run->num_instances; first += grid_rows) {
        int64_t stop = first + grid_rows < run->num_instances ? first + grid_rows : run->num_instances;
        int64_t width = 0;
        for (int64_t row = first; row < stop; row++)
            width = length_of(run, row) > width ? length_of(run, row) : width;
        int position_bits = 0;
        while ((width - 1) >> position_bits)
            position_bits++;
        for (int64_t row = first; row < stop; row++) {
            uint32_t length = (uint32_t)length_of(run, row);
            uint64_t first_key = (uint64_t)(row - first) * (uint64_t)width;
            draw_keys(bases[first / grid_rows], first_key, position_bits, length, run->segment_a_length[row], keys);
            uint32_t limit = find_limit(keys, length, (uint32_t)run->counts[row]);
            uint16_t *positions = out->positions + out->offsets[row];
            out->offsets[row + 1] = out->offsets[row] + choose_in_row(keys, length, limit, positions);
        }
    }
    free(keys);
    return true;
}

static uint32_t get_id(const void *ids, int item_bytes, int64_t index)
{
    return item_bytes == 2 ? ((const uint16_t *)ids)[index] : ((const uint32_t *)ids)[index];
}

static void set_id(void *ids, int item_bytes, int64_t index, uint32_t id)
{
    if (item_bytes == 2)
        ((uint16_t *)ids)[index] = (uint16_t)id;
    else
        ((uint32_t *)ids)[index] = id;
}

/* The words of one instance; they end where segments end. Returns how many, numbered from `number` in the run. */
static int32_t list_words(const mask_run *run, int64_t row, const void *ids, int item_bytes,
                          const uint8_t *is_continuation, uint64_t base, uint64_t number, word *words)
{
    int32_t length = (int32_t)length_of(run, row), last_of_a = run->segment_a_length[row] - 1, count = 0;
    for (int32_t position = 1; position < length - 1; position++) {
        if (position == last_of_a)
            continue;
        bool is_first = position == 1 || position == last_of_a + 1;
        if (is_first || !is_continuation[get_id(ids, item_bytes, run->offsets[row] + position)]) {
            words[count] = (word){random_word(base, number + (uint64_t)count), position, 0, count};
            count++;
        }
        words[count - 1].length++;
    }
    return count;
}

static bool is_before(const word *one, const word *other)
{
    return one->key < other->key || (one->key == other->key && one->number < other->number);
}

/* Restores the heap whose top may be too great. */
static void sift_down(word *words, int32_t top, int32_t count)
{
    word moved = words[top];
    for (int32_t child = 2 * top + 1; child < count; child = 2 * top + 1) {
        if (child + 1 < count && is_before(&words[child + 1], &words[child]))
            child++;
        if (!is_before(&words[child], &moved))
            break;
        words[top] = words[child];
        top = child;
    }
    words[top] = moved;
}

/* Marks the tokens of words in the order of their keys until num_left are marked; what does not fit is passed over. */
static void take_words(word *words, int32_t count, int64_t num_left, uint8_t *is_chosen)
{
    for (int32_t top = count / 2 - 1; top >= 0; top--)
        sift_down(words, top, count);
    while (count && num_left) {
        if (words[0].length <= num_left) {
            memset(is_chosen + words[0].start, 1, (size_t)words[0].length);
            num_left -= words[0].length;
        }
        words[0] = words[--count];
        sift_down(words, 0, count);
    }
}

bool choose_words(const mask_run *run, const void *ids, int item_bytes, const uint8_t *is_continuation, uint64_t base,
                  mask_choice *out)
{
    word *words = malloc(MAX_INSTANCE_TOKENS * sizeof *words);
    uint8_t *is_chosen = calloc(MAX_INSTANCE_TOKENS, 1);
    bool has_memory = words && is_chosen;
    uint64_t number = 0;
    out->offsets[0] = 0;
    for (int64_t row = 0; has_memory && row < run->num_instances; row++) {
        int32_t count = list_words(run, row, ids, item_bytes, is_continuation, base, number, words);
        number += (uint64_t)count;
        take_words(words, count, run->counts[row], is_chosen);
        int64_t next = out->offsets[row], length = length_of(run, row);
        for (int64_t position = 0; position < length; position++) {
            out->positions[next] = (uint16_t)position;
            next += is_chosen[position];
        }
        out->offsets[row + 1] = next;
        memset(is_chosen, 0, (size_t)length);
    }
    free(words);
    free(is_chosen);
    return has_memory;
}

void replace_tokens(const mask_run *run, const mask_choice *chosen, uint64_t base, uint32_t mask_id,
                    uint32_t vocab_size, void *ids, int item_bytes, void *labels)
{
    for (int64_t row = 0; row < run->num_instances; row++)
        for (int64_t m = chosen->offsets[row]; m < chosen->offsets[row + 1]; m++) {
            int64_t index = run->offsets[row] + chosen->positions[m];
            uint32_t id = get_id(ids, item_bytes, index);
            set_id(labels, item_bytes, m, id);
            uint64_t draw = random_word(base, (uint64_t)m);
            uint32_t which = (uint32_t)draw, any_id = (uint32_t)((draw >> 32) * vocab_size >> 32);
            uint32_t kept = which < KEEP_BELOW ? id : any_id;
            set_id(ids, item_bytes, index, which < MASK_BELOW ? mask_id : kept);
        }
}
