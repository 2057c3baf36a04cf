/* What a template shows in its sentence, as pipeline/wiki/inline_templates.py defines it. */

#ifndef BEAMBERT_INLINE_TEMPLATES_H
#define BEAMBERT_INLINE_TEMPLATES_H

#include <stdint.h>
#include <string.h>

#include "lines.h"

#define MAX_CALL_BYTES 1000
#define MAX_SHOWN_BYTES (MAX_CALL_BYTES + 100)  /* the arguments, each once, and what a row has beside them */
#define MAX_NAME_BYTES 64
#define MAX_PIECES 12
#define NUM_SLOTS 4096

typedef struct {
    const uint8_t *start, *end;
} Span;

typedef struct {
    Span name;         /* or nothing: of an argument without one */
    Span value;
    size_t number;     /* of an argument without a name, from 1; or 0 */
} Argument;

typedef struct {
    Span name;
    const char *ways;
    size_t num_arguments;
    Argument arguments[MAX_PIECES];
    uint8_t *out;
} Call;

static inline Span trim(const uint8_t *start, const uint8_t *end) {
    Span span = {skip_spaces(start, end), NULL};
    if (span.start > end) span.start = end;
    span.end = trim_spaces(span.start, end);
    return span;
}

static inline size_t span_length(Span span) { return (size_t)(span.end - span.start); }

static inline int is_text(Span span, const char *text, size_t length) {
    return span_length(span) == length && memcmp(span.start, text, length) == 0;
}

/* The ways of the template of this name, or NULL. `table` is `hash_table()`. */
static inline const char *find_ways(const char *table, Span name) {
    size_t length = span_length(name);
    if (length == 0 || length > MAX_NAME_BYTES) return NULL;
    uint32_t hash = 2166136261u;
    for (const uint8_t *at = name.start; at < name.end; at++) hash = (hash ^ *at) * 16777619u;
    for (uint32_t row;; hash++) {
        memcpy(&row, table + 4 * (hash % NUM_SLOTS), sizeof row);
        if (row == 0) return NULL;
        if (memcmp(table + row, name.start, length) == 0 && table[row + length] == 0) return table + row + length + 1;
    }
}

/* Finds the call's name and its ways (NULL where the table has none); where its arguments begin, or NULL. */
static inline const uint8_t *read_call_name(Call *call, const char *table, const uint8_t *start, const uint8_t *end) {
    const uint8_t *pipe = memchr(start, '|', (size_t)(end - start));
    call->name = trim(start, pipe ? pipe : end);
    const uint8_t *colon = memchr(call->name.start, ':', span_length(call->name));
    call->ways = find_ways(table, call->name);
    if (call->ways == NULL && colon) {
        call->name.end = colon + 1;
        call->ways = find_ways(table, call->name);
    }
    if (colon && call->name.end == colon + 1) return colon + 1;
    return pipe ? pipe + 1 : NULL;
}

static inline void read_call_arguments(Call *call, const uint8_t *at, const uint8_t *end) {
    size_t num_unnamed = 0;
    while (at && call->num_arguments < MAX_PIECES) {
        const uint8_t *pipe = memchr(at, '|', (size_t)(end - at)), *stop = pipe ? pipe : end;
        const uint8_t *equals = memchr(at, '=', (size_t)(stop - at));
        Argument *argument = &call->arguments[call->num_arguments++];
        argument->number = equals ? 0 : ++num_unnamed;
        argument->name = equals ? trim(at, equals) : (Span){at, at};
        argument->value = trim(equals ? equals + 1 : at, stop);
        at = pipe ? pipe + 1 : NULL;
    }
}

static inline void show_span(Call *call, Span span) {
    memcpy(call->out, span.start, span_length(span));
    call->out += span_length(span);
}

static inline int is_quantity(Span value) {
    static const char *const BETWEEN[] = {"to", "and", "or", "by", "x", "×", "-", "–", "+/-", "±"};
    if (value.start < value.end && memchr("0123456789+-.,", *value.start, 14)) return 1;
    if (span_length(value) >= 3 && memcmp(value.start, "−", 3) == 0) return 1;
    for (size_t each = 0; each < sizeof BETWEEN / sizeof *BETWEEN; each++) {
        if (is_text(value, BETWEEN[each], strlen(BETWEEN[each]))) return 1;
    }
    return 0;
}

/* Numbers and the words between them, and the first unit. */
static inline int show_measure(Call *call) {
    const uint8_t *before = call->out;
    for (size_t each = 0, is_first = 1; each < call->num_arguments; each++) {
        if (call->arguments[each].number == 0) continue;
        if (!is_first) *call->out++ = ' ';
        is_first = 0;
        show_span(call, call->arguments[each].value);
        if (!is_quantity(call->arguments[each].value)) break;
    }
    return call->out > before;
}

/* Shows the argument of this key; whether it is given and not empty. */
static inline int show_key(Call *call, const char *key, size_t length) {
    size_t number = 0;
    Span found = {NULL, NULL};
    if (length == 1 && *key == '~') return show_measure(call);
    for (size_t digit = 0; digit < length && key[digit] >= '0' && key[digit] <= '9'; digit++) {
        number = 10 * number + (size_t)(key[digit] - '0');
    }
    for (size_t each = call->num_arguments; each-- > 0;) {
        const Argument *argument = &call->arguments[each];
        int is_numbered = argument->number && argument->number == number && found.start == NULL;
        if (is_numbered || (!argument->number && is_text(argument->name, key, length))) found = argument->value;
    }
    if (length == 1 && *key == '0') found = call->name;
    if (found.start == found.end) return 0;
    show_span(call, found);
    return 1;
}

/* Shows the first way all of whose arguments are given; whether there is one. */
static inline int show_ways(Call *call, uint8_t *out) {
    for (const char *way = call->ways;; way++) {
        int is_given = 1;
        call->out = out;
        for (; *way && *way != '|'; way++) {
            if (*way != '{') {
                if (is_given) *call->out++ = (uint8_t)*way;
                continue;
            }
            const char *end = strchr(way, '}');
            is_given = is_given && show_key(call, way + 1, (size_t)(end - way - 1));
            way = end;
        }
        if (is_given) return memchr(out, '\n', (size_t)(call->out - out)) == NULL;
        if (*way == 0) return 0;
    }
}

/* Writes what a call shows, its text without the braces, to `out` of MAX_SHOWN_BYTES; the number of bytes. */
static inline size_t show_call(const char *table, const uint8_t *start, const uint8_t *end, uint8_t *out) {
    if (end - start > MAX_CALL_BYTES) return 0;
    Call call;
    call.num_arguments = 0;
    const uint8_t *arguments = read_call_name(&call, table, start, end);
    if (call.ways == NULL) return 0;
    read_call_arguments(&call, arguments, end);
    return show_ways(&call, out) ? (size_t)(call.out - out) : 0;
}

#endif
