/* The rules of pipeline/text/cleaning.py in one go over the bytes of a text.
 *
 * What a character is comes as a table from there, so that the lists stand in one place. */

#include "characters.h"

#define NUM_CODES 0x10000 /* characters beyond are all kept */

enum { CLEAN_KEPT, CLEAN_SPACE, CLEAN_LINE_END, CLEAN_DROPPED };

/* Writes the cleaned text, which is never longer, and returns the number of its bytes.
 *
 * `plain` says of each byte whether it is kept without a look at its character; a space is, behind
 * another byte. */
static size_t clean_bytes(
    const uint8_t *text, const uint8_t *end, const uint8_t *kinds, const uint8_t *plain,
    uint8_t *out
) {
    uint8_t *cleaned = out, waiting = CLEAN_KEPT; /* what stands before the next kept character */
    while (text < end) {
        const uint8_t *start = text;
        uint8_t kind = CLEAN_KEPT;
        if (plain[*text] && *text != ' ') {
            do text++;
            while (text < end && plain[*text] && !(*text == ' ' && text[-1] == ' '));
            if (text[-1] == ' ') text--;
        } else {
            uint32_t code = *text;
            text += code < 0x80 ? 1 : decode(text, end, &code);
            if (code < NUM_CODES) kind = kinds[code];
        }
        if (kind == CLEAN_KEPT) {
            int is_joined = waiting != CLEAN_KEPT && out > cleaned;
            if (is_joined) *out++ = waiting == CLEAN_SPACE ? ' ' : '\n';
            waiting = CLEAN_KEPT;
            memcpy(out, start, (size_t)(text - start));
            out += text - start;
        } else if (kind == CLEAN_LINE_END || (kind == CLEAN_SPACE && waiting == CLEAN_KEPT)) {
            waiting = kind;
        }
    }
    return (size_t)(out - cleaned);
}
