/* The rules of pipeline/text/cleaning.py in one go over the bytes of a text.
 *
 * What a character is comes as a table from there, so that the lists stand in one place. */

#include <stdint.h>
#include <string.h>

#define NUM_CODES 0x10000 /* characters beyond are all kept */

enum { CLEAN_KEPT, CLEAN_SPACE, CLEAN_LINE_END, CLEAN_DROPPED };

/* The byte after a character that is no plain byte; its kind. */
static inline const uint8_t *read_cleaned(
    const uint8_t *text, const uint8_t *end, const uint8_t *kinds, uint8_t *kind
) {
    uint32_t code = text[0];
    size_t length = code < 0x80 ? 1 : code < 0xE0 ? 2 : code < 0xF0 ? 3 : 4;
    if (length > (size_t)(end - text)) length = (size_t)(end - text);
    if (length > 1) code &= 0xFF >> (length + 1);
    for (size_t index = 1; index < length; index++) code = code << 6 | (text[index] & 0x3F);
    *kind = code < NUM_CODES ? kinds[code] : CLEAN_KEPT;
    return text + length;
}

/* Writes the cleaned text, which is never longer, and returns the number of its bytes.
 *
 * `plain` says of each byte whether it is kept without a look at its character; a space is, behind another byte. */
static size_t clean_bytes(
    const uint8_t *text, const uint8_t *end, const uint8_t *kinds, const uint8_t *plain, uint8_t *cleaned
) {
    uint8_t *out = cleaned, waiting = CLEAN_KEPT; /* what is written before the next character that is kept */
    while (text < end) {
        const uint8_t *start = text;
        uint8_t kind = CLEAN_KEPT;
        if (plain[*text] && *text != ' ') {
            do text++;
            while (text < end && plain[*text] && !(*text == ' ' && text[-1] == ' '));
            if (text[-1] == ' ') text--;
        } else {
            text = read_cleaned(text, end, kinds, &kind);
        }
        if (kind == CLEAN_KEPT) {
            if (waiting != CLEAN_KEPT && out > cleaned) *out++ = waiting == CLEAN_SPACE ? ' ' : '\n';
            waiting = CLEAN_KEPT;
            memcpy(out, start, (size_t)(text - start));
            out += text - start;
        } else if (kind == CLEAN_LINE_END || (kind == CLEAN_SPACE && waiting == CLEAN_KEPT)) {
            waiting = kind;
        }
    }
    return (size_t)(out - cleaned);
}
