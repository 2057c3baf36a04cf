/* From rendered wikitext to paragraphs, in place: quotes, behaviour switches and empty
 * brackets go, and the spaces and stops left around what is not shown; then lines.
 *
 * Each of these goes once over the text and never writes beyond what it has read. */

#ifndef BEAMBERT_LINES_H
#define BEAMBERT_LINES_H

#include <stdint.h>
#include <string.h>

/* Bytes of the space that Python's `str.isspace` knows at `text`; 0 where there is none. */
static inline size_t space_bytes(const uint8_t *text, const uint8_t *end) {
    uint8_t byte = text < end ? *text : 'x';
    if (byte < 0x80) return byte == ' ' || (byte >= 9 && byte <= 13) || (byte >= 28 && byte <= 31);
    if (byte == 0xC2) return end - text > 1 && (text[1] == 0x85 || text[1] == 0xA0) ? 2 : 0;
    if (end - text < 3 || byte < 0xE1 || byte > 0xE3) return 0;
    if (byte == 0xE1) return text[1] == 0x9A && text[2] == 0x80 ? 3 : 0;
    if (byte == 0xE3) return text[1] == 0x80 && text[2] == 0x80 ? 3 : 0;
    if (text[1] == 0x81) return text[2] == 0x9F ? 3 : 0;
    if (text[1] != 0x80) return 0;
    return text[2] <= 0x8A || text[2] == 0xA8 || text[2] == 0xA9 || text[2] == 0xAF ? 3 : 0;
}

static inline const uint8_t *skip_spaces(const uint8_t *text, const uint8_t *end) {
    for (size_t bytes; (bytes = space_bytes(text, end)) > 0;) text += bytes;
    return text;
}

static inline const uint8_t *trim_spaces(const uint8_t *start, const uint8_t *end) {
    while (end > start) {
        const uint8_t *last = end - 1;
        while (last > start && (*last & 0xC0) == 0x80) last--;
        if (space_bytes(last, end) == 0) break;
        end = last;
    }
    return end;
}

/* Each returns the byte after what it matches at `text`, or `text` itself. */
typedef const uint8_t *(*Match)(const uint8_t *text, const uint8_t *end);

static inline const uint8_t *match_quotes(const uint8_t *text, const uint8_t *end) {
    const uint8_t *at = text;
    while (at < end && *at == '\'') at++;
    return at - text >= 2 ? at : text;
}

static inline const uint8_t *match_behaviour(const uint8_t *text, const uint8_t *end) {
    if (end - text < 5 || text[1] != '_') return text;
    const uint8_t *at = text + 2;
    while (at < end && *at >= 'A' && *at <= 'Z') at++;
    return at > text + 2 && end - at >= 2 && at[0] == '_' && at[1] == '_' ? at + 2 : text;
}

static inline const uint8_t *match_empty_brackets(const uint8_t *text, const uint8_t *end) {
    const uint8_t *at = text + 1;
    for (size_t bytes; at < end; at += bytes) {
        bytes = *at == ',' || *at == ';' ? 1 : space_bytes(at, end);
        if (bytes == 0) break;
    }
    return at < end && *at == ')' ? at + 1 : text;
}

/* As `match_empty_brackets`, of Chinese and Japanese. */
static inline const uint8_t *match_wide_brackets(const uint8_t *text, const uint8_t *end) {
    if (end - text < 6 || memcmp(text, "（", 3) != 0) return text;
    const uint8_t *at = text + 3;
    for (size_t bytes; end - at >= 3; at += bytes) {
        int is_stop = memcmp(at, "、", 3) == 0 || memcmp(at, "，", 3) == 0 || memcmp(at, "；", 3) == 0;
        bytes = is_stop ? 3 : space_bytes(at, end);
        if (bytes == 0) break;
    }
    return end - at >= 3 && memcmp(at, "）", 3) == 0 ? at + 3 : text;
}

/* Takes out what matches where `first` stands, with the space before it where `space` is set; the new length. */
static inline size_t take_out(uint8_t *text, size_t length, uint8_t first, Match match, int space) {
    const uint8_t *at = text, *end = text + length;
    uint8_t *out = text;
    while (at < end) {
        const uint8_t *found = memchr(at, first, (size_t)(end - at));
        size_t before = (size_t)((found ? found : end) - at);
        memmove(out, at, before);
        out += before;
        if (found == NULL) break;
        at = match(found, end);
        if (at > found && space && before > 0 && out[-1] == ' ') out--;
        if (at == found) {
            if (first == '\'') while (at < end && *at == first) *out++ = *at++;
            else *out++ = *at++;
        }
    }
    return (size_t)(out - text);
}

/* Takes spaces and stops out behind "(", and before ")" where a space is the last of them; the new length. */
static inline size_t tidy_brackets(uint8_t *text, size_t length) {
    const uint8_t *at = text, *end = text + length;
    uint8_t *out = text;
    while (at < end) {
        uint8_t byte = *at++;
        if (byte == ')' && out > text && out[-1] == ' ') {
            while (out > text && (out[-1] == ' ' || out[-1] == ',' || out[-1] == ';')) out--;
        }
        *out++ = byte;
        if (byte == '(') while (at < end && (*at == ' ' || *at == ',' || *at == ';')) at++;
    }
    return (size_t)(out - text);
}

/* Takes out spaces before commas, and all but one of commas with nothing but spaces between them; the new length. */
static inline size_t tidy_commas(uint8_t *text, size_t length) {
    const uint8_t *at = text, *end = text + length;
    uint8_t *out = text;
    while (at < end) {
        const uint8_t *comma = memchr(at, ',', (size_t)(end - at));
        size_t before = (size_t)((comma ? comma : end) - at);
        memmove(out, at, before);
        out += before;
        if (comma == NULL) break;
        for (const uint8_t *next = at = comma + 1; next < end && (*next == ' ' || *next == ','); next++) {
            if (*next == ',') at = next + 1;
        }
        while (out > text && out[-1] == ' ') out--;
        *out++ = ',';
    }
    return (size_t)(out - text);
}

/* Takes out spaces before full stops that end a sentence; the new length. */
static inline size_t tidy_stops(uint8_t *text, size_t length) {
    const uint8_t *at = text, *end = text + length;
    uint8_t *out = text;
    while (at < end) {
        int is_last = *at == '.' && (at + 1 == end || at[1] == ' ' || at[1] == '\n');
        while (is_last && out > text && out[-1] == ' ') out--;
        *out++ = *at++;
    }
    return (size_t)(out - text);
}

/* What stands on a heading's line behind the heading: text; on other lines, the line. */
static inline const uint8_t *skip_heading(const uint8_t *line, const uint8_t *end) {
    const uint8_t *start = line, *last = end;
    while (start < end && *start == '=') start++;
    while (last > start && last[-1] != '=') last--;
    return start > line && last > start ? skip_spaces(last, end) : line;
}

static inline int is_list_or_table(const uint8_t *line, const uint8_t *end) {
    if (memchr("*#:;=|!", *line, 7) || *line == 0) return 1;
    if (end - line >= 2 && line[0] == '{' && line[1] == '|') return 1;
    return end - line >= 4 && memcmp(line, "----", 4) == 0;
}

/* Lines of a paragraph joined by a space, paragraphs by a line's end; the new length. */
static inline size_t join_lines(uint8_t *text, size_t length) {
    const uint8_t *at = text, *end = text + length;
    uint8_t *out = text, joint = 0;
    while (at < end) {
        const uint8_t *stop = memchr(at, '\n', (size_t)(end - at));
        if (stop == NULL) stop = end;
        const uint8_t *start = skip_spaces(at, stop), *last = trim_spaces(start, stop);
        const uint8_t *behind = start == at ? skip_heading(start, last) : start;
        if (behind > start) start = behind, joint = '\n';
        if (start < last && !is_list_or_table(start, last)) {
            if (joint && out > text) *out++ = joint;
            memmove(out, start, (size_t)(last - start));
            out += last - start;
            joint = ' ';
        } else {
            joint = '\n';
        }
        at = stop + 1;
    }
    return (size_t)(out - text);
}

static inline size_t make_paragraphs(uint8_t *text, size_t length) {
    length = take_out(text, length, '\'', match_quotes, 0);
    length = take_out(text, length, '_', match_behaviour, 0);
    length = take_out(text, length, '(', match_empty_brackets, 1);
    length = take_out(text, length, 0xEF, match_wide_brackets, 0);
    length = tidy_brackets(text, length);
    length = tidy_commas(text, length);
    length = tidy_stops(text, length);
    return join_lines(text, length);
}

#endif
