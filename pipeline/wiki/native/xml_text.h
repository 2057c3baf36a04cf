/* The text of an XML element that holds no other, its references resolved. */

#ifndef BEAMBERT_XML_TEXT_H
#define BEAMBERT_XML_TEXT_H

#include <stdint.h>
#include <string.h>

/* Bytes of the character at `text` that UTF-8 and XML allow; 0 where they do not, or where a parser changes it. */
static inline size_t character_bytes(const uint8_t *text, const uint8_t *end) {
    uint8_t first = *text;
    if (first < 0x80) return first >= 0x20 || first == '\t' || first == '\n';
    size_t bytes = first >= 0xC2 && first < 0xE0 ? 2 : (first & 0xF0) == 0xE0 ? 3 : first >= 0xF0 && first < 0xF5 ? 4 : 0;
    if (bytes == 0 || (size_t)(end - text) < bytes) return 0;
    for (size_t each = 1; each < bytes; each++) {
        if ((text[each] & 0xC0) != 0x80) return 0;
    }
    if (first == 0xE0 && text[1] < 0xA0) return 0;
    if (first == 0xED && text[1] > 0x9F) return 0;
    if (first == 0xEF && text[1] == 0xBF && text[2] > 0xBD) return 0;
    if (first == 0xF0 && text[1] < 0x90) return 0;
    return first == 0xF4 && text[1] > 0x8F ? 0 : bytes;
}

/* Bytes that stand for themselves. */
static inline int is_plain_byte(uint8_t byte) {
    return (byte >= 0x20 && byte < 0x80 && byte != '&' && byte != '<' && byte != '>') || byte == '\n';
}

/* Writes what stands between two tags to `out`, which has as much room; NULL where an XML parser is to judge it:
 * references but to <, >, & and ", ends of CDATA, carriage returns and what is no text. */
static inline uint8_t *resolve_references(const uint8_t *at, const uint8_t *end, uint8_t *out) {
    static const struct { char name[8]; size_t length; uint8_t byte; } REFERENCES[] = {
        {"&lt;", 4, '<'}, {"&gt;", 4, '>'}, {"&amp;", 5, '&'}, {"&quot;", 6, '"'},
    };
    uint8_t plain[256];
    for (int byte = 0; byte < 256; byte++) plain[byte] = (uint8_t)is_plain_byte((uint8_t)byte);
    while (at < end) {
        const uint8_t *run = at;
        while (at < end && plain[*at]) at++;
        memcpy(out, run, (size_t)(at - run));
        out += at - run;
        if (at == end) break;
        if (*at == '&') {
            size_t each = 0;
            while (each < 4 && ((size_t)(end - at) < REFERENCES[each].length ||
                                memcmp(at, REFERENCES[each].name, REFERENCES[each].length) != 0)) each++;
            if (each == 4) return NULL;
            *out++ = REFERENCES[each].byte;
            at += REFERENCES[each].length;
        } else {
            size_t bytes = *at == '>' || *at == '<' ? 0 : character_bytes(at, end);
            if (bytes == 0) return NULL;
            memcpy(out, at, bytes);
            out += bytes, at += bytes;
        }
    }
    return out;
}

#endif
