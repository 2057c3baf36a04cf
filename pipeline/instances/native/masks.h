/* Masks of a run of packed instances: the compiled twin of pipeline.instances.masking, whose docstrings say what is done. */
#ifndef BEAMBERT_MASKS_H
#define BEAMBERT_MASKS_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_INSTANCE_TOKENS 65535 /* positions are uint16 */

/* N instances, T tokens; the caller has checked that they fit each other and that every one has 4 tokens at least. */
typedef struct {
    int64_t num_instances;
    const int64_t *offsets;           /* [N + 1], ascending, within [0, T] */
    const uint16_t *segment_a_length; /* [N], from 2 to the instance's length - 1 */
    const int64_t *counts;            /* [N] positions to mask, from 1 to the instance's length - 3 */
} mask_run;

/* The chosen positions, with room for one more than the sum of the counts. */
typedef struct {
    int64_t *offsets;    /* [N + 1] */
    uint16_t *positions; /* [M] */
} mask_choice;

/* Chooses tokens; bases has one number for every grid of grid_rows instances. False where memory ran out. */
bool choose_tokens(const mask_run *run, const uint64_t *bases, int64_t grid_rows, mask_choice *out);

/* Chooses whole words; is_continuation is indexed by the run's ids, which the caller has checked. */
bool choose_words(const mask_run *run, const void *ids, int item_bytes, const uint8_t *is_continuation, uint64_t base,
                  mask_choice *out);

/* Copies the chosen tokens to labels and puts [MASK], themselves or any id in their places. */
void replace_tokens(const mask_run *run, const mask_choice *chosen, uint64_t base, uint32_t mask_id,
                    uint32_t vocab_size, void *ids, int item_bytes, void *labels);

#endif
