/* Greedy longest match in linear time: LinMaxMatch of Song et al. 2021, "Fast WordPiece Tokenization".
 *
 * A trie of bytes with two roots, one of pieces that begin a word and one of pieces that continue it, "##" taken off.
 * It is a double array: the child of state s by byte c is slot edges[s].base + c, if edges[slot].parent is s. Where a
 * state has no child for a byte, its failure says which pieces the bytes up to there are (its pops), and which state
 * of the second root stands for the bytes that are left; NO_STATE says that no pieces are. A failure never leads
 * deeper, so a word of n bytes takes at most 2 n steps. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOT 0u
#define OTHER_ROOT 1u
#define NO_STATE UINT32_MAX
#define NO_TOKEN UINT32_MAX
#define MANY_POPS 0x80000000u
#define MAX_POPS ((size_t)1 << 22) /* some 20 times those of 120,000 multilingual pieces */

typedef struct {
    uint32_t base, parent;
} Edge;

typedef struct {
    uint32_t next;
    uint32_t pops; /* one id, or MANY_POPS and the place of a number of ids and these ids */
} Failure;

typedef struct {
    Edge *edges;
    Failure *failures;
    uint32_t *pops;
    size_t num_slots, num_pops, pops_capacity;
    size_t first_free;
} Trie;

typedef struct {
    const uint8_t *bytes;
    size_t length;
    uint32_t id;
} Piece;

/* A state while the trie is built: pieces low to high, which begin with its bytes. */
typedef struct {
    size_t low, high, depth;
    uint32_t slot, parent, token;
    uint8_t byte;
} Node;

typedef enum { TRIE_BUILT, TRIE_NO_MEMORY, TRIE_TOO_LARGE } TrieResult;

static inline uint32_t find_child(const Trie *trie, uint32_t state, uint8_t byte) {
    uint32_t slot = trie->edges[state].base + byte;
    return trie->edges[slot].parent == state ? slot : NO_STATE;
}

static void free_trie(Trie *trie) {
    free(trie->edges);
    free(trie->failures);
    free(trie->pops);
    memset(trie, 0, sizeof *trie);
}

/* Slots up to `wanted` and 256 more, so that no base and byte lead outside. */
static TrieResult reserve_slots(Trie *trie, size_t wanted) {
    size_t needed = wanted + 256, size = trie->num_slots;
    if (needed <= size) return TRIE_BUILT;
    size = needed > 2 * size ? needed : 2 * size;
    if (size >= NO_STATE) return TRIE_TOO_LARGE;
    Edge *edges = realloc(trie->edges, size * sizeof *edges);
    if (edges == NULL) return TRIE_NO_MEMORY;
    for (size_t slot = trie->num_slots; slot < size; slot++) edges[slot] = (Edge){0, NO_STATE};
    trie->edges = edges;
    trie->num_slots = size;
    return TRIE_BUILT;
}

/* Gives back the slots behind those that a base and byte may lead to. */
static void trim_slots(Trie *trie) {
    size_t size = trie->num_slots;
    while (size > 512 && trie->edges[size - 257].parent == NO_STATE) size--;
    Edge *edges = realloc(trie->edges, size * sizeof *edges);
    if (edges == NULL) return;
    trie->edges = edges;
    trie->num_slots = size;
}

/* The first base at which the slots of all these bytes, ascending, are free. */
static TrieResult find_base(Trie *trie, const uint8_t *bytes, size_t count, size_t *base) {
    size_t slot = trie->first_free, num_taken = 0;
    int found_free = 0;
    for (;; slot++) {
        TrieResult result = reserve_slots(trie, slot);
        if (result != TRIE_BUILT) return result;
        if (trie->edges[slot].parent != NO_STATE) {
            num_taken++;
            continue;
        }
        if (!found_free) trie->first_free = slot;
        found_free = 1;
        if (slot < bytes[0]) continue;
        size_t index = 1;
        while (index < count && trie->edges[slot - bytes[0] + bytes[index]].parent == NO_STATE) index++;
        if (index == count) break;
    }
    /* Where hardly a slot is free, the next search begins behind. */
    if (num_taken * 20 > (slot - trie->first_free + 1) * 19) trie->first_free = slot;
    *base = slot - bytes[0];
    return TRIE_BUILT;
}

/* Gives a node's children their slots and appends them to the nodes. */
static TrieResult place_children(Trie *trie, const Piece *pieces, Node *nodes, size_t at, size_t *num_nodes) {
    Node *node = &nodes[at];
    uint8_t bytes[256];
    size_t count = 0, base, first = *num_nodes, low = node->low;
    if (low < node->high && pieces[low].length == node->depth) node->token = pieces[low++].id;
    while (low < node->high) {
        uint8_t byte = pieces[low].bytes[node->depth];
        size_t high = low + 1;
        while (high < node->high && pieces[high].bytes[node->depth] == byte) high++;
        nodes[(*num_nodes)++] = (Node){low, high, node->depth + 1, 0, node->slot, NO_TOKEN, byte};
        bytes[count++] = byte;
        low = high;
    }
    if (count == 0) return TRIE_BUILT;
    TrieResult result = find_base(trie, bytes, count, &base);
    if (result != TRIE_BUILT) return result;
    trie->edges[node->slot].base = (uint32_t)base;
    for (size_t index = first; index < *num_nodes; index++) {
        nodes[index].slot = (uint32_t)(base + nodes[index].byte);
        trie->edges[nodes[index].slot].parent = node->slot;
    }
    return TRIE_BUILT;
}

static TrieResult append_pops(Trie *trie, const uint32_t *ids, size_t count) {
    if (trie->num_pops + count > MAX_POPS) return TRIE_TOO_LARGE;
    if (trie->num_pops + count > trie->pops_capacity) {
        size_t capacity = 2 * (trie->num_pops + count);
        uint32_t *pops = realloc(trie->pops, capacity * sizeof *pops);
        if (pops == NULL) return TRIE_NO_MEMORY;
        trie->pops = pops;
        trie->pops_capacity = capacity;
    }
    memcpy(trie->pops + trie->num_pops, ids, count * sizeof *ids);
    trie->num_pops += count;
    return TRIE_BUILT;
}

static TrieResult append_pops_of(Trie *trie, uint32_t state) {
    uint32_t pops = trie->failures[state].pops;
    if (!(pops & MANY_POPS)) return append_pops(trie, &pops, 1);
    size_t place = pops & ~MANY_POPS, count = trie->pops[place];
    for (size_t index = 1; index <= count; index++) {
        uint32_t id = trie->pops[place + index];
        TrieResult result = append_pops(trie, &id, 1);
        if (result != TRIE_BUILT) return result;
    }
    return TRIE_BUILT;
}

/* The failure of a node, from those of nodes less deep. */
static TrieResult link_node(Trie *trie, const Node *node) {
    Failure *failure = &trie->failures[node->slot];
    if (node->token != NO_TOKEN) {
        *failure = (Failure){OTHER_ROOT, node->token};
        return TRIE_BUILT;
    }
    uint32_t state = node->parent, next = NO_STATE, none = 0;
    size_t place = trie->num_pops;
    TrieResult result = append_pops(trie, &none, 1);
    while (result == TRIE_BUILT && next == NO_STATE && trie->failures[state].next != NO_STATE) {
        result = append_pops_of(trie, state);
        state = trie->failures[state].next;
        next = find_child(trie, state, node->byte);
    }
    if (result != TRIE_BUILT) return result;
    size_t count = trie->num_pops - place - 1;
    if (next == NO_STATE || count == 1) {
        *failure = (Failure){next, next == NO_STATE ? 0 : trie->pops[place + 1]};
        trie->num_pops = place;
    } else {
        trie->pops[place] = (uint32_t)count;
        *failure = (Failure){next, MANY_POPS | (uint32_t)place};
    }
    return TRIE_BUILT;
}

/* From pieces, each root's in ascending order of bytes, distinct and not empty; ids below MANY_POPS. */
static TrieResult build_trie(Trie *trie, const Piece *pieces, size_t num_first, size_t num_pieces) {
    size_t num_nodes = 2, limit = 2;
    for (size_t index = 0; index < num_pieces; index++) limit += pieces[index].length;
    if (limit >= MANY_POPS) return TRIE_TOO_LARGE;
    memset(trie, 0, sizeof *trie);
    Node *nodes = malloc(limit * sizeof *nodes);
    TrieResult result = nodes == NULL ? TRIE_NO_MEMORY : reserve_slots(trie, OTHER_ROOT);
    if (result == TRIE_BUILT) {
        nodes[FIRST_ROOT] = (Node){0, num_first, 0, FIRST_ROOT, NO_STATE, NO_TOKEN, 0};
        nodes[OTHER_ROOT] = (Node){num_first, num_pieces, 0, OTHER_ROOT, NO_STATE, NO_TOKEN, 0};
        trie->first_free = 2;
    }
    for (size_t at = 0; result == TRIE_BUILT && at < num_nodes; at++)
        result = place_children(trie, pieces, nodes, at, &num_nodes);
    if (result == TRIE_BUILT) {
        trim_slots(trie);
        trie->failures = malloc(trie->num_slots * sizeof *trie->failures);
        if (trie->failures == NULL) result = TRIE_NO_MEMORY;
    }
    if (result == TRIE_BUILT)
        for (size_t slot = 0; slot < trie->num_slots; slot++) trie->failures[slot] = (Failure){NO_STATE, 0};
    for (size_t at = 2; result == TRIE_BUILT && at < num_nodes; at++) result = link_node(trie, &nodes[at]);
    free(nodes);
    if (result != TRIE_BUILT) free_trie(trie);
    return result;
}
