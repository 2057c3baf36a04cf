/* Encodes sentences byte by byte: a byte's kind says whether it ends a word, ASCII words go through
 * the trie, and other characters are replaced by their forms first.
 *
 * A chunk is the text between ASCII spaces and ASCII punctuation. A chunk that has a character
 * without a form is left to the caller, with the place where its ids belong. */

#include "characters.h"
#include "trie.h"

/* Kinds of bytes, the same as in tokenizer/compiled_encoder.py. The kind of a byte of an ASCII word
 * is the byte that is matched in its place, FIRST_WORD_BYTE or more. */
enum { SPACE, MARK, DROPPED, PART, FIRST_WORD_BYTE };

typedef struct {
    uint8_t kinds[256];
    uint32_t mark_ids[256];
    uint32_t unknown_id;
    size_t max_characters; /* a word with more characters is unknown */
    Trie trie;
    Characters characters;
} Matcher;

typedef struct {
    const uint8_t *bytes;
    size_t length;
} Text;

/* A chunk that is left to the caller. */
typedef struct {
    size_t place;    /* number of ids before those of the chunk */
    size_t sentence; /* number of its sentence */
    Text text;
} Left;

typedef struct {
    uint32_t *ids;
    size_t num_ids, ids_capacity;
    Left *left;
    size_t num_left, left_capacity;
    int no_memory; /* if set, nothing is added any more */
} Output;

/* The word that is being read. */
typedef struct {
    uint32_t state; /* in the trie; NO_STATE if the word is unknown, FIRST_ROOT between words */
    size_t start;   /* number of ids before those of the word */
    size_t num_characters;
} Word;

/* Makes room for twice the items that are needed. Returns NULL if there is no memory. */
static void *grow(void *items, size_t *capacity, size_t needed, size_t item_bytes) {
    void *grown = realloc(items, 2 * needed * item_bytes);
    if (grown != NULL) *capacity = 2 * needed;
    return grown;
}

static int reserve_ids(Output *output, size_t count) {
    size_t needed = output->num_ids + count;
    uint32_t *ids = grow(output->ids, &output->ids_capacity, needed, sizeof *ids);
    if (ids == NULL) output->no_memory = 1;
    else output->ids = ids;
    return ids != NULL;
}

static inline void push_ids(Output *output, const uint32_t *ids, size_t count) {
    if (output->ids_capacity - output->num_ids < count && !reserve_ids(output, count)) return;
    for (size_t index = 0; index < count; index++) output->ids[output->num_ids++] = ids[index];
}

/* Appends the ids of the pieces that a failure says. */
static inline void push_pops(Output *output, const Trie *trie, Failure failure) {
    push_ids(output, trie->pops + failure.pops + 1, trie->pops[failure.pops]);
}

/* Returns the state after a byte, or NO_STATE if no pieces match. Appends the ids of pieces that
 * are complete. */
static inline uint32_t advance(const Trie *trie, uint32_t state, uint8_t byte, Output *output) {
    for (;;) {
        uint32_t child = find_child(trie, state, byte);
        if (child != NO_STATE) return child;
        Failure failure = trie->failures[state];
        if (failure.next == NO_STATE) return NO_STATE;
        push_pops(output, trie, failure);
        state = failure.next;
    }
}

/* Ends a word: appends the ids of its last pieces, or replaces all of its ids if it is unknown. */
static inline void end_word(const Matcher *matcher, Word *word, Output *output) {
    uint32_t state = word->state;
    if (state != FIRST_ROOT) {
        while (state != OTHER_ROOT && state != NO_STATE) {
            Failure failure = matcher->trie.failures[state];
            if (failure.next != NO_STATE) push_pops(output, &matcher->trie, failure);
            state = failure.next;
        }
        if (state == NO_STATE) {
            output->num_ids = word->start;
            push_ids(output, &matcher->unknown_id, 1);
        }
    }
    *word = (Word){FIRST_ROOT, output->num_ids, 0};
}

/* Reads consecutive ASCII bytes of a word, and returns where they end. */
static inline const uint8_t *read_ascii(
    const Matcher *matcher, const uint8_t *text, const uint8_t *end, Word *word, Output *output
) {
    const uint8_t *start = text, *limit = end;
    uint32_t state = word->state;
    if (state != NO_STATE) {
        size_t rest = matcher->max_characters - word->num_characters;
        if ((size_t)(end - text) > rest) limit = text + rest;
        for (; text < limit && matcher->kinds[*text] >= FIRST_WORD_BYTE; text++) {
            state = advance(&matcher->trie, state, matcher->kinds[*text], output);
            if (state == NO_STATE) break;
        }
        word->num_characters += (size_t)(text - start);
    }
    if (text < end && matcher->kinds[*text] >= FIRST_WORD_BYTE) {
        state = NO_STATE;
        do text++;
        while (text < end && matcher->kinds[*text] >= FIRST_WORD_BYTE);
    }
    word->state = state;
    return text;
}

/* Reads the form of a character as if it stood in the text. */
static inline void read_form(const Matcher *matcher, uint32_t place, Word *word, Output *output) {
    const uint8_t *form = matcher->characters.forms + place + 1, *end = form + form[-1];
    for (; form < end; form++) {
        if (*form == ' ') {
            end_word(matcher, word, output);
        } else if (word->state != NO_STATE) {
            word->num_characters += (*form & 0xC0) != 0x80;
            if (word->num_characters > matcher->max_characters) word->state = NO_STATE;
            else word->state = advance(&matcher->trie, word->state, *form, output);
        }
    }
}

/* Leaves the chunk around a character to the caller; returns where it ends. */
static const uint8_t *leave_chunk(
    const Matcher *matcher, Text sentence, size_t number, const uint8_t *text, Output *output
) {
    const uint8_t *start = text, *end = sentence.bytes + sentence.length;
    while (start > sentence.bytes && matcher->kinds[start[-1]] >= DROPPED) start--;
    while (text < end && matcher->kinds[*text] >= DROPPED) text++;
    if (output->num_left == output->left_capacity) {
        Left *left = grow(output->left, &output->left_capacity, output->num_left + 1, sizeof *left);
        if (left == NULL) {
            output->no_memory = 1;
            return end;
        }
        output->left = left;
    }
    Text chunk = {start, (size_t)(text - start)};
    output->left[output->num_left++] = (Left){output->num_ids, number, chunk};
    return text;
}

/* Appends the ids of a sentence, and the chunks that are left to the caller. */
static void encode_sentence(const Matcher *matcher, Text sentence, size_t number, Output *output) {
    const uint8_t *text = sentence.bytes, *end = text + sentence.length;
    size_t chunk_ids = output->num_ids;
    Word word = {FIRST_ROOT, output->num_ids, 0};
    while (text < end) {
        uint8_t kind = matcher->kinds[*text];
        if (kind >= FIRST_WORD_BYTE) {
            text = read_ascii(matcher, text, end, &word, output);
        } else if (kind <= MARK) {
            end_word(matcher, &word, output);
            if (kind == MARK) push_ids(output, &matcher->mark_ids[*text], 1);
            word.start = chunk_ids = output->num_ids;
            text++;
        } else if (kind == DROPPED) {
            text++;
        } else {
            uint32_t code_point;
            size_t length = decode(text, end, &code_point);
            uint32_t form = find_form(&matcher->characters, code_point);
            if (form != NO_FORM) {
                read_form(matcher, form, &word, output);
                text += length;
            } else {
                output->num_ids = chunk_ids;
                word = (Word){FIRST_ROOT, chunk_ids, 0};
                text = leave_chunk(matcher, sentence, number, text, output);
            }
        }
    }
    end_word(matcher, &word, output);
}
