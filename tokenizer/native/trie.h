/* Cuts words into the longest pieces from the left, in linear time: LinMaxMatch of Song et al.
 * 2021, "Fast WordPiece Tokenization".
 *
 * It uses a trie of bytes with two roots: one for pieces that begin a word, and one for pieces that
 * continue it, without their "##". The trie is a double array: the child of state s by byte c is
 * slot edges[s].base + c, if edges[slot].parent is s.
 *
 * If a state has no child for a byte, its failure says into which pieces the bytes before that
 * byte are cut (its pops), and with which state below the second root the search goes on, for
 * the bytes that are in no piece yet. NO_STATE says that the word cannot be cut. A failure never
 * leads to a deeper state, so a word of n bytes takes at most 2 n steps. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOT 0u
#define OTHER_ROOT 1u
#define NO_STATE UINT32_MAX
#define NO_TOKEN UINT32_MAX
#define MAX_POPS ((size_t)1 << 22) /* about 20 times what 120,000 multilingual pieces need */

typedef struct {
    uint32_t base, parent;
} Edge;

typedef struct {
    uint32_t next;
    uint32_t pops; /* place in Trie.pops of the number of ids, after which the ids follow */
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

/* A state while the trie is built. Pieces low to high - 1 begin with its bytes. */
typedef struct {
    size_t low, high, depth;
    uint32_t slot, parent, token;
    uint8_t byte;
} Node;

/* Returns the child of a state by a byte, or NO_STATE. */
static inline uint32_t find_child(const Trie *trie, uint32_t state, uint8_t byte) {
    uint32_t slot = trie->edges[state].base + byte;
    return trie->edges[slot].parent == state ? slot : NO_STATE;
}

static void free_trie(Trie *trie) {
    free(trie->edges);
    free(trie->failures);
    free(trie->pops);
}

/* From here on functions return 0 if there is no memory, or the trie would be too large. */

/* Makes slots up to `wanted` and 256 more, so that no base and byte together lead outside. */
static int reserve_slots(Trie *trie, size_t wanted) {
    if (wanted + 256 <= trie->num_slots) return 1;
    size_t size = 2 * (wanted + 256);
    Edge *edges = size < NO_STATE ? realloc(trie->edges, size * sizeof *edges) : NULL;
    if (edges == NULL) return 0;
    for (size_t slot = trie->num_slots; slot < size; slot++) edges[slot] = (Edge){0, NO_STATE};
    trie->edges = edges;
    trie->num_slots = size;
    return 1;
}

/* Finds the first base at which the slots of all these bytes are free. Bytes ascend. */
static int find_base(Trie *trie, const uint8_t *bytes, size_t count, size_t *base) {
    size_t slot = trie->first_free, num_taken = 0;
    int found_free = 0;
    for (;; slot++) {
        if (!reserve_slots(trie, slot)) return 0;
        if (trie->edges[slot].parent != NO_STATE) {
            num_taken++;
            continue;
        }
        if (!found_free) trie->first_free = slot;
        found_free = 1;
        if (slot < bytes[0]) continue;
        size_t index = 1, start = slot - bytes[0];
        while (index < count && trie->edges[start + bytes[index]].parent == NO_STATE) index++;
        if (index == count) break;
    }
    /* If hardly any of these slots was free, the next search begins after them. */
    if (num_taken * 20 > (slot - trie->first_free + 1) * 19) trie->first_free = slot;
    *base = slot - bytes[0];
    return 1;
}

/* Gives a node's children their slots and appends them to the nodes. */
static int place_children(
    Trie *trie, const Piece *pieces, Node *nodes, size_t at, size_t *num_nodes
) {
    Node *node = &nodes[at];
    uint8_t bytes[256];
    size_t count = 0, base, first = *num_nodes, low = node->low;
    if (low < node->high && pieces[low].length == node->depth) node->token = pieces[low++].id;
    while (low < node->high) {
        if (pieces[low].length <= node->depth) return 0; /* not distinct or not ascending */
        uint8_t byte = pieces[low].bytes[node->depth];
        size_t high = low + 1;
        while (high < node->high && pieces[high].bytes[node->depth] == byte) high++;
        nodes[(*num_nodes)++] = (Node){low, high, node->depth + 1, 0, node->slot, NO_TOKEN, byte};
        bytes[count++] = byte;
        low = high;
    }
    if (count == 0) return 1;
    if (!find_base(trie, bytes, count, &base)) return 0;
    trie->edges[node->slot].base = (uint32_t)base;
    for (size_t index = first; index < *num_nodes; index++) {
        nodes[index].slot = (uint32_t)(base + nodes[index].byte);
        trie->edges[nodes[index].slot].parent = node->slot;
    }
    return 1;
}

static int append_pop(Trie *trie, uint32_t id) {
    if (trie->num_pops == trie->pops_capacity) {
        size_t capacity = 2 * trie->pops_capacity + 64;
        uint32_t *pops = capacity < MAX_POPS ? realloc(trie->pops, capacity * sizeof *pops) : NULL;
        if (pops == NULL) return 0;
        trie->pops = pops;
        trie->pops_capacity = capacity;
    }
    trie->pops[trie->num_pops++] = id;
    return 1;
}

/* Computes the failure of a node, from the failures of nodes that are less deep. */
static int link_node(Trie *trie, const Node *node) {
    uint32_t state = node->parent, next = node->token == NO_TOKEN ? NO_STATE : OTHER_ROOT;
    size_t place = trie->num_pops;
    if (!append_pop(trie, 0)) return 0;
    if (next == OTHER_ROOT && !append_pop(trie, node->token)) return 0;
    while (next == NO_STATE && trie->failures[state].next != NO_STATE) {
        size_t pops = trie->failures[state].pops, count = trie->pops[pops];
        for (size_t index = 1; index <= count; index++)
            if (!append_pop(trie, trie->pops[pops + index])) return 0;
        state = trie->failures[state].next;
        next = find_child(trie, state, node->byte);
    }
    trie->pops[place] = (uint32_t)(trie->num_pops - place - 1);
    if (next == NO_STATE) trie->num_pops = place;
    trie->failures[node->slot] = (Failure){next, (uint32_t)place};
    return 1;
}

/* Builds the trie. The first `num_first` pieces begin words, the others continue them. Both must be
 * distinct, not empty, and in ascending order of bytes. */
static int build_trie(Trie *trie, const Piece *pieces, size_t num_first, size_t num_pieces) {
    size_t num_nodes = 2, limit = 2;
    for (size_t index = 0; index < num_pieces; index++) limit += pieces[index].length;
    Node *nodes = malloc(limit * sizeof *nodes);
    int is_good = nodes != NULL && reserve_slots(trie, OTHER_ROOT);
    if (is_good) {
        nodes[FIRST_ROOT] = (Node){0, num_first, 0, FIRST_ROOT, NO_STATE, NO_TOKEN, 0};
        nodes[OTHER_ROOT] = (Node){num_first, num_pieces, 0, OTHER_ROOT, NO_STATE, NO_TOKEN, 0};
        trie->first_free = 2;
    }
    for (size_t at = 0; is_good && at < num_nodes; at++)
        is_good = place_children(trie, pieces, nodes, at, &num_nodes);
    if (is_good) trie->failures = malloc(trie->num_slots * sizeof *trie->failures);
    is_good = is_good && trie->failures != NULL;
    for (size_t slot = 0; is_good && slot < trie->num_slots; slot++)
        trie->failures[slot] = (Failure){NO_STATE, 0};
    for (size_t at = 2; is_good && at < num_nodes; at++) is_good = link_node(trie, &nodes[at]);
    free(nodes);
    return is_good;
}
