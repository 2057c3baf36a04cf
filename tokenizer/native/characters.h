/* What each character that is not ASCII becomes in the text that is matched: its form, in UTF-8, with a space wherever a
 * word ends; learned from Python, which asks the `tokenizers` library, when a character is first met. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NUM_PAGES 0x1100
#define PAGE_SIZE 256
#define UNKNOWN_FORM 0u
#define NO_FORM 1u /* the character's surroundings decide */
#define MAX_FORM_BYTES 255

typedef struct {
    uint32_t *pages[NUM_PAGES]; /* by the upper bits of a code point: places in `forms`, each of a length and the bytes */
    uint8_t *forms;
    size_t num_bytes, capacity;
} Characters;

/* Bytes of the character at `text`, which has one more byte at least and is no ASCII. */
static inline size_t decode(const uint8_t *text, const uint8_t *end, uint32_t *code_point) {
    uint8_t lead = text[0];
    size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t value = lead & (0xFF >> (length + 1));
    if (length > (size_t)(end - text)) length = (size_t)(end - text);
    for (size_t index = 1; index < length; index++) value = value << 6 | (text[index] & 0x3F);
    *code_point = value;
    return length;
}

static inline uint32_t find_form(const Characters *characters, uint32_t code_point) {
    if (code_point >= NUM_PAGES * PAGE_SIZE) return NO_FORM;
    const uint32_t *page = characters->pages[code_point / PAGE_SIZE];
    return page == NULL ? UNKNOWN_FORM : page[code_point % PAGE_SIZE];
}

/* Both return 0 when there is no memory. */
static int set_form(Characters *characters, uint32_t code_point, uint32_t form) {
    uint32_t **page = &characters->pages[code_point / PAGE_SIZE];
    if (*page == NULL) *page = calloc(PAGE_SIZE, sizeof **page);
    if (*page == NULL) return 0;
    (*page)[code_point % PAGE_SIZE] = form;
    return 1;
}

static int learn_form(Characters *characters, uint32_t code_point, const uint8_t *form, size_t length) {
    if (characters->num_bytes < 2) characters->num_bytes = 2; /* the places UNKNOWN_FORM and NO_FORM hold nothing */
    if (characters->num_bytes + length + 1 > characters->capacity) {
        size_t capacity = 2 * (characters->num_bytes + length + 1);
        uint8_t *forms = realloc(characters->forms, capacity);
        if (forms == NULL) return 0;
        characters->forms = forms;
        characters->capacity = capacity;
    }
    uint32_t place = (uint32_t)characters->num_bytes;
    characters->forms[place] = (uint8_t)length;
    memcpy(characters->forms + place + 1, form, length);
    characters->num_bytes += length + 1;
    return set_form(characters, code_point, place);
}

static void free_characters(Characters *characters) {
    for (size_t page = 0; page < NUM_PAGES; page++) free(characters->pages[page]);
    free(characters->forms);
}
