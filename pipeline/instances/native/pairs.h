/* Sentence pairs of a bucket's documents: the compiled twin of pipeline.instances.pairs, whose docstrings say what is done. */
#ifndef BEAMBERT_PAIRS_H
#define BEAMBERT_PAIRS_H

#include <stdbool.h>
#include <stdint.h>

/* S sentences of D documents; the caller has checked that both ascend strictly and fit each other. */
typedef struct {
    const int64_t *bounds; /* [S + 1], first token of each sentence, and the number of tokens */
    const int64_t *firsts; /* [D + 1], first sentence of each document, and S at most */
    int64_t num_documents; /* at least 2 */
} sentences;

/* Columns of pipeline.instances.pairs.Pairs with room for `capacity` rows. */
typedef struct {
    int32_t *document_a;
    int64_t *a_start, *a_stop;
    int32_t *document_b;
    int64_t *b_start, *b_stop;
    uint8_t *is_random_next;
    int64_t count, capacity;
} pair_columns;

/* pipeline.instances.pairs._Balance. */
typedef struct {
    bool is_exact;
    double chance;
    int64_t tokens_left, num_pairs, num_forced, excess;
} nsp_balance;

/* How to make pairs: max_tokens is at least 2. */
typedef struct {
    int64_t max_tokens;
    double short_seq_prob;
} pair_rule;

/* Appends the pairs of rows[0 ... num_rows - 1]; seeds are seed_digits 32-bit digits each, the lowest first. */
void pair_documents(const sentences *all, const int64_t *rows, int64_t num_rows, const uint32_t *seeds,
                    int64_t seed_digits, const pair_rule *rule, nsp_balance *balance, pair_columns *out);

/* Writes [CLS] A [SEP] B [SEP] of pair n to out[offsets[n]...], ids of item_bytes 2 or 4. */
void gather_instances(const void *tokens, int item_bytes, const pair_columns *pairs, uint32_t cls_id, uint32_t sep_id,
                      const int64_t *offsets, void *out);

#endif
