/* The forms of characters that are not ASCII. A form is the text, in UTF-8, by which a character
 * is replaced before words are matched, with a space wherever a word ends. Python learns forms
 * from the `tokenizers` library. */

#ifndef BEAMBERT_CHARACTERS_H
#define BEAMBERT_CHARACTERS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define NUM_CODE_POINTS 0x110000u
#define NO_FORM 0u /* not learned, or the character's neighbours decide */
#define MAX_FORM_BYTES 255

typedef struct {
    uint32_t *places; /* by code point: the place in `forms` of the form's length and bytes */
    uint8_t *forms;
    size_t num_bytes, capacity;
} Characters;

/* Returns the number of bytes of the character at `text`, and sets its code point. */
static inline size_t decode(const uint8_t *text, const uint8_t *end, uint32_t *code_point) {
    uint8_t lead = text[0];
    size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    uint32_t value = lead & (0xFF >> (length + 1));
    if (length > (size_t)(end - text)) length = (size_t)(end - text);
    for (size_t index = 1; index < length; index++) value = value << 6 | (text[index] & 0x3F);
    *code_point = value;
    return length;
}

/* Stores the form of a character. Returns 0 if there is no memory. */
static int learn_form(Characters *characters, uint32_t code, const char *form, size_t length) {
    if (characters->places == NULL) characters->places = calloc(NUM_CODE_POINTS, sizeof(uint32_t));
    if (characters->num_bytes == NO_FORM) characters->num_bytes = 1;
    size_t needed = characters->num_bytes + length + 1;
    if (needed > characters->capacity) {
        uint8_t *forms = realloc(characters->forms, 2 * needed);
        if (forms == NULL) return 0;
        characters->forms = forms;
        characters->capacity = 2 * needed;
    }
    if (characters->places == NULL) return 0;
    uint8_t *place = characters->forms + characters->num_bytes;
    *place = (uint8_t)length;
    memcpy(place + 1, form, length);
    characters->places[code] = (uint32_t)characters->num_bytes;
    characters->num_bytes = needed;
    return 1;
}

/* Returns the place of a character's form, or NO_FORM. */
static inline uint32_t find_form(const Characters *characters, uint32_t code_point) {
    return characters->places == NULL ? NO_FORM : characters->places[code_point];
}

#endif
