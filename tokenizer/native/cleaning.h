/* Cleans a text by the rules of pipeline/text/cleaning.py, in one pass over its bytes.
 *
 * The kinds of characters are passed as a table by that module, so that they are listed only
 * there. */

#include "characters.h"

#define NUM_CODES 0x10000 /* all characters from here on are kept */

enum { CLEAN_KEPT, CLEAN_SPACE, CLEAN_LINE_END, CLEAN_DROPPED };

/* Writes the cleaned text, which is never longer than the text, and returns its number of bytes.
 *
 * `kinds` has the kind of each character below NUM_CODES. `plain` says of each byte whether it is
 * kept whatever its character is. A space is plain too, but only a single one between other plain
 * bytes is kept that way. */
static size_t clean_bytes(
    const uint8_t *text, const uint8_t *end, const uint8_t *kinds, const uint8_t *plain,
    uint8_t *out
) {
    uint8_t *cleaned = out, waiting = CLEAN_KEPT; /* white space to write next */
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
