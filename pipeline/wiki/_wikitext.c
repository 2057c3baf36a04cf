/* The Python module pipeline.wiki._wikitext: renders wikitext as text, as pipeline/wiki/markup.py
 * defines it. Functions have the same names there, and are explained there.
 *
 * The page is read once, from left to right. The text that it shows is written to a buffer of one
 * and a half times its size, because a template may show more than is written: "{{s-|V}}" shows
 * "Ve siècle".
 *
 * Markup that is opened and not closed yet has a frame on a stack. Its opener was written to the
 * buffer as plain text, and stays there if it is never closed. A closer removes the text since the
 * opener from the buffer (templates, references, tables, files), or keeps a part of it (links).
 *
 * The time is linear in the size of the page, whatever its markup: each frame knows the innermost
 * frame of every kind that a closer may close, and if MAX_DEPTH frames are open, further openers
 * are only plain text. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CALL_BYTES 1000  /* as in inline_templates.py */
#define MAX_ENTITY_NAME 8
#define MAX_DEPTH 100
#define MAX_TAG_NAME 16
#define MAX_SCHEME 9
#define NUM_TAGS 128 /* more than there are tags in markup.py */

enum { BRACES, LINK, EXTERNAL, TABLE, HTML_TABLE, REFERENCE, ITEM, VARIANTS, NUM_KINDS };

/* Markup that was opened and is not closed yet. */
typedef struct {
    int kind;
    int8_t nearest[NUM_KINDS]; /* index of the innermost frame of each kind that may be closed
                                  while this is the top of the stack, or -1 */
    size_t opener;             /* position of the opener in the output */
    size_t label;              /* LINK, EXTERNAL: position in the output after pipe or address */
    size_t num_braces;         /* BRACES: number of braces that are not closed yet */
    const uint8_t *content;    /* the byte of the page after the opener */
    const uint8_t *title_end;  /* LINK: its first pipe in the page, or NULL */
} Frame;

/* A page that is being read, and the text that was written so far. */
typedef struct {
    const uint8_t *begin, *end;        /* the page */
    const uint8_t *at;                 /* the page was read up to this byte */
    const uint8_t *plain_start;        /* from here to the current markup, bytes were written
                                          unchanged */
    uint8_t *out;                      /* the output */
    size_t length;                     /* number of bytes in the output */
    int depth;                         /* number of open frames */
    Frame frames[MAX_DEPTH];           /* the stack of open frames, the innermost last */
    uint8_t unclosed[NUM_TAGS];        /* by number of a raw tag: whether the rest of the page has
                                          no closer of it, so that none is searched for twice;
                                          0, which is no raw tag, stands for comments */
    const uint8_t *close;              /* the ">" that find_close found last, or NULL */
    const uint8_t *close_from;         /* the byte from which that ">" is the next one */
    const uint8_t *last_close;         /* the last ">" of the page, or the byte before the page */
    PyObject *hidden, *show, *convert; /* Python functions: see `render` */
    PyObject *tags, *schemes, *entities; /* Python dictionaries: see `render` */
    int failed;                        /* whether a Python exception is set */
} Reader;

/* What a tag does with the text that it holds, with the numbers of markup.py. */
enum { VANISH, BREAK, LIST_ITEM, TABLE_TAG, REF, RAW_DROPPED, RAW_SHOWN };

typedef struct {
    char name[MAX_TAG_NAME]; /* in lower case */
    int kind;                /* one of the values above */
    int number;              /* the place of the tag in TAGS of markup.py, from 0 */
} Tag;

/* The bytes with which markup may begin. */
static const uint8_t SPECIAL[256] = {
    ['\n'] = 1, ['&'] = 1, [':'] = 1, ['<'] = 1, ['['] = 1,
    [']'] = 1,  ['{'] = 1, ['|'] = 1, ['}'] = 1,
};

static inline int lower(int byte) { return byte >= 'A' && byte <= 'Z' ? byte + 32 : byte; }
static inline int is_letter(int byte) { return lower(byte) >= 'a' && lower(byte) <= 'z'; }
static inline int is_digit(int byte) { return byte >= '0' && byte <= '9'; }

/* Returns the number of bytes of the white space character (by Python's `str.isspace`) at `text`,
 * or 0 if there is another character. */
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

/* Returns the byte after the white space at `text`. */
static inline const uint8_t *skip_spaces(const uint8_t *text, const uint8_t *end) {
    for (size_t bytes; (bytes = space_bytes(text, end)) > 0;) text += bytes;
    return text;
}

/* Returns whether the byte at `at` is this one; false at the end of the page. */
static inline int at_byte(const Reader *reader, const uint8_t *at, int byte) {
    return at < reader->end && *at == byte;
}

/* Writes some bytes to the output. */
static inline void emit(Reader *reader, const uint8_t *start, const uint8_t *end) {
    memcpy(reader->out + reader->length, start, (size_t)(end - start));
    reader->length += (size_t)(end - start);
}

/* Writes the next bytes of the page unchanged, and continues after them. */
static inline void take(Reader *reader, size_t num_bytes) {
    emit(reader, reader->at, reader->at + num_bytes);
    reader->at += num_bytes;
}

/* Returns the innermost open frame, or NULL. */
static inline Frame *top(Reader *reader) {
    return reader->depth ? &reader->frames[reader->depth - 1] : NULL;
}

/* Returns whether the innermost frame is a link whose title has not ended. */
static inline int in_title(Reader *reader) {
    Frame *frame = top(reader);
    return frame && frame->kind == LINK && frame->title_end == NULL;
}

/* Returns the index of the innermost frame of a kind that may be closed here, or -1. */
static inline int nearest(Reader *reader, int kind) {
    return reader->depth ? reader->frames[reader->depth - 1].nearest[kind] : -1;
}

/* Writes an opener of `num_bytes` as text, and opens its frame. Returns NULL if the stack is full;
 * the opener is written nevertheless. */
static Frame *open_frame(Reader *reader, int kind, size_t num_bytes) {
    Frame *frame = reader->depth < MAX_DEPTH ? &reader->frames[reader->depth] : NULL;
    if (frame) {
        for (int outer = 0; outer < NUM_KINDS; outer++) {
            /* A frame outside of braces or of a table cannot be closed from within them, with two
             * exceptions: a reference can, and braces can be closed from within a table. */
            int can_close = outer == REFERENCE || (kind != BRACES && kind != TABLE);
            if (kind == TABLE && outer == BRACES) can_close = 1;
            frame->nearest[outer] = (int8_t)(can_close ? nearest(reader, outer) : -1);
        }
        frame->nearest[kind] = (int8_t)reader->depth++;
        frame->kind = kind;
        frame->opener = reader->length;
        frame->label = 0;
        frame->num_braces = 0;
        frame->title_end = NULL;
        frame->content = reader->at + num_bytes;
    }
    take(reader, num_bytes);
    return frame;
}

/* Closes a frame: removes its text, and the frames in it that were never closed. */
static void drop_frame(Reader *reader, int index) {
    reader->length = reader->frames[index].opener;
    reader->depth = index;
}

/* Closes a frame: replaces its opener and its text by the output from `start` to `end`. */
static void keep_piece(Reader *reader, int index, size_t start, size_t end) {
    size_t out = reader->frames[index].opener;
    memmove(reader->out + out, reader->out + start, end - start);
    reader->length = out + end - start;
    reader->depth = index;
}

/* Returns whether only spaces, tabs and colons are before `at` on its line. */
static int starts_line(const Reader *reader) {
    const uint8_t *at = reader->at;
    while (at > reader->begin && (at[-1] == ' ' || at[-1] == '\t' || at[-1] == ':')) at--;
    return at == reader->begin || at[-1] == '\n';
}

/* Calls a Python function with the output from `text` to its end, and writes the result in place of
 * the output from `out` to its end. */
static void replace_text(Reader *reader, PyObject *function, size_t text, size_t out) {
    const char *start = (const char *)reader->out + text;
    Py_ssize_t size = (Py_ssize_t)(reader->length - text);
    Py_ssize_t length = 0;
    PyObject *found = PyObject_CallFunction(function, "s#", start, size);
    const char *shown = found ? PyUnicode_AsUTF8AndSize(found, &length) : NULL;
    if (shown == NULL) {
        reader->failed = 1;
        length = 0;
    } else {
        memcpy(reader->out + out, shown, (size_t)length);
    }
    Py_XDECREF(found);
    reader->length = out + (size_t)length;
}

/* Writes the text that a template shows, in place of the output from `out` to its end. The call of
 * the template, without its braces, is the output from `call` to its end. */
static void show_call(Reader *reader, size_t call, size_t out) {
    if (reader->length - call <= MAX_CALL_BYTES) replace_text(reader, reader->show, call, out);
    else reader->length = out;
}

/* Opens a frame of variants at the brace of "-{", whose "-" was already written as text. */
static void open_variants(Reader *reader) {
    reader->length--;
    reader->at--;
    open_frame(reader, VARIANTS, 2);
}

/* Opens templates, a table or variants, or writes the braces as text. */
static void read_open_braces(Reader *reader) {
    size_t num_braces = 1;
    while (at_byte(reader, reader->at + num_braces, '{')) num_braces++;
    if (num_braces % 2 && reader->at > reader->plain_start && reader->at[-1] == '-') {
        open_variants(reader);
        num_braces--;
    }
    if (num_braces > 1) {
        Frame *frame = open_frame(reader, BRACES, num_braces);
        if (frame) frame->num_braces = num_braces;
    } else if (num_braces && at_byte(reader, reader->at + 1, '|') && starts_line(reader)) {
        open_frame(reader, TABLE, 2);
    } else {
        take(reader, num_braces);
    }
}

/* Closes a template, or an argument of a template. Returns the number of closing braces that were
 * used, or 0 if the braces hold nothing that can be the name of a template. They are then text. */
static size_t close_braces(Reader *reader, int index, size_t num_braces) {
    Frame *frame = &reader->frames[index];
    const uint8_t *name = skip_spaces(frame->content, reader->at);
    if (name == reader->at || *name == '[') {
        reader->depth = index;
        return 0;
    }
    size_t closed = frame->num_braces > 2 && num_braces > 2 ? 3 : 2;
    size_t call = frame->opener + frame->num_braces;
    frame->num_braces -= closed;
    reader->at += closed;
    if (closed == 2) show_call(reader, call, frame->opener + frame->num_braces);
    else reader->length = frame->opener + frame->num_braces;
    reader->depth = frame->num_braces > 1 ? index + 1 : index;
    return closed;
}

/* Replaces the text of a frame of variants by the one variant that is shown. */
static void close_variants(Reader *reader, int index) {
    size_t out = reader->frames[index].opener;
    replace_text(reader, reader->convert, out + 2, out);
    reader->depth = index;
    reader->at += 2;
}

/* Closes as many templates as there are braces for, or variants if "-" follows the last brace. */
static void read_close_braces(Reader *reader) {
    size_t num_braces = 1;
    while (at_byte(reader, reader->at + num_braces, '}')) num_braces++;
    int is_variants_end = at_byte(reader, reader->at + num_braces, '-');
    while (num_braces > 0) {
        int index = nearest(reader, BRACES);
        int variants = is_variants_end ? nearest(reader, VARIANTS) : -1;
        if (variants > index) {
            take(reader, num_braces - 1);
            close_variants(reader, variants);
            return;
        }
        if (num_braces < 2 || index < 0) break;
        num_braces -= close_braces(reader, index, num_braces);
    }
    take(reader, num_braces);
}

/* Ends the title of a link, or closes a table. */
static void read_pipe(Reader *reader) {
    int table = at_byte(reader, reader->at + 1, '}') ? nearest(reader, TABLE) : -1;
    if (in_title(reader)) {
        top(reader)->title_end = reader->at;
        take(reader, 1);
        top(reader)->label = reader->length;
    } else if (table >= 0 && starts_line(reader)) {
        drop_frame(reader, table);
        reader->at += 2;
    } else {
        take(reader, 1);
    }
}

/* Copies the letters and digits at `at`, at most `most` of them, to `word` in lower case. Returns
 * the byte after them. */
static const uint8_t *read_word(const Reader *reader, const uint8_t *at, char *word, int most) {
    int length = 0;
    for (; at < reader->end && length < most && (is_letter(*at) || is_digit(*at)); at++)
        word[length++] = (char)lower(*at);
    word[length] = 0;
    return at;
}

/* Returns the byte after the scheme of an address, such as "https://", at `text`; or NULL. */
static const uint8_t *match_scheme(const Reader *reader, const uint8_t *text) {
    char name[MAX_SCHEME + 1];
    const uint8_t *at = read_word(reader, text, name, MAX_SCHEME);
    if (!at_byte(reader, at, ':')) return NULL;
    PyObject *needs_slashes = PyDict_GetItemString(reader->schemes, name);
    if (needs_slashes == NULL) return NULL;
    if (at_byte(reader, at + 1, '/') && at_byte(reader, at + 2, '/')) return at + 3;
    return needs_slashes == Py_True ? NULL : at + 1;
}

/* Returns whether a web address ends before the byte at `at`. */
static int ends_address(Reader *reader, const uint8_t *at) {
    if (*at <= ' ' || memchr("[]<>\"", *at, 5) || space_bytes(at, reader->end)) return 1;
    if (*at == '\'' && at_byte(reader, at + 1, '\'')) return 1;
    if (*at == '}' && at_byte(reader, at + 1, '-') && nearest(reader, VARIANTS) >= 0) return 1;
    if (nearest(reader, BRACES) < 0) return 0;
    return *at == '|' || (*at == '}' && at_byte(reader, at + 1, '}'));
}

/* Returns the byte after the web address at `at`. */
static const uint8_t *skip_address(Reader *reader, const uint8_t *at) {
    while (at < reader->end && !ends_address(reader, at)) at++;
    return at;
}

/* Returns whether the character before `at` is part of a word, within which no address begins. */
static int is_within_word(const Reader *reader, const uint8_t *at) {
    size_t before = (size_t)(at - reader->begin);
    if (before == 0) return 0;
    if (at[-1] < 0x80) return is_letter(at[-1]) || is_digit(at[-1]) || at[-1] == '_';
    if (before >= 2 && at[-2] == 0xC2) return 0;
    if (before < 3) return 1;
    int is_mark = (at[-3] == 0xE2 && at[-2] == 0x80) || (at[-3] == 0xE3 && at[-2] == 0x80);
    return !is_mark && !(at[-3] == 0xEF && (at[-2] == 0xBC || at[-2] == 0xBD));
}

/* Skips a web address in running text; the punctuation after the address is kept. */
static void read_colon(Reader *reader) {
    const uint8_t *start = reader->at;
    while (start > reader->plain_start && reader->at - start <= MAX_SCHEME && is_letter(start[-1]))
        start--;
    int is_word = in_title(reader) || start == reader->at || is_within_word(reader, start);
    const uint8_t *name_end = is_word ? NULL : match_scheme(reader, start);
    const uint8_t *end = name_end ? skip_address(reader, name_end) : NULL;
    if (end == NULL || end == name_end) {
        take(reader, 1);
        return;
    }
    int has_bracket = memchr(name_end, '(', (size_t)(end - name_end)) != NULL;
    const char *stops = has_bracket ? ",.:;!?" : ",.:;!?)";
    while (end > name_end + 1 && memchr(stops, end[-1], strlen(stops))) end--;
    reader->length -= (size_t)(reader->at - start);
    reader->at = end;
}

/* Opens a link or an external link, or writes the bracket as text. */
static void read_open_bracket(Reader *reader) {
    int is_double = at_byte(reader, reader->at + 1, '[');
    const uint8_t *name = reader->at + 1;
    if (is_double && !match_scheme(reader, reader->at + 2)) {
        if (in_title(reader)) reader->depth--;
        open_frame(reader, LINK, 2);
        return;
    }
    if (is_double) {
        take(reader, 1);
        name++;
    }
    int has_slashes = at_byte(reader, name, '/') && at_byte(reader, name + 1, '/');
    const uint8_t *address = has_slashes ? name + 2 : match_scheme(reader, name);
    const uint8_t *end = address ? skip_address(reader, address) : NULL;
    if (end == address) {
        take(reader, 1);
        return;
    }
    Frame *frame = open_frame(reader, EXTERNAL, 1);
    reader->at = end;
    if (at_byte(reader, end, ' ')) take(reader, 1);
    if (frame) frame->label = reader->length;
}

/* Returns whether a link to this title is not shown, which the Python function `hidden` decides. */
static int is_hidden(Reader *reader, const uint8_t *title, const uint8_t *end) {
    if (memchr(title, ':', (size_t)(end - title)) == NULL) return 0;
    const char *text = (const char *)title;
    PyObject *found = PyObject_CallFunction(reader->hidden, "s#", text, (Py_ssize_t)(end - title));
    int is_true = found ? PyObject_IsTrue(found) : -1;
    Py_XDECREF(found);
    if (is_true < 0) reader->failed = 1;
    return is_true > 0;
}

/* Closes a link: nothing is kept if it is hidden, otherwise its label or its title. */
static void close_link(Reader *reader, int index) {
    Frame *frame = &reader->frames[index];
    const uint8_t *title_end = frame->title_end ? frame->title_end : reader->at;
    size_t start = frame->opener + 2;
    size_t end = reader->length;
    if (title_end == frame->content) {
        reader->depth = index;
        take(reader, 2);
        return;
    }
    if (is_hidden(reader, frame->content, title_end)) {
        drop_frame(reader, index);
    } else {
        if (frame->title_end && reader->at > frame->title_end + 1) start = frame->label;
        else if (frame->title_end) end = frame->label - 1; /* the title, without the pipe */
        while (start < end && reader->out[start] == ':') start++;
        keep_piece(reader, index, start, end);
    }
    reader->at += 2;
}

/* Closes an external link or a link, whichever is further in, or writes the bracket as text. */
static void read_close_bracket(Reader *reader) {
    int external = nearest(reader, EXTERNAL);
    int link = nearest(reader, LINK);
    int is_double = at_byte(reader, reader->at + 1, ']');
    if (external >= 0 && (external > link || !is_double)) {
        keep_piece(reader, external, reader->frames[external].label, reader->length);
        reader->at++;
    } else if (is_double && link >= 0) {
        close_link(reader, link);
    } else {
        take(reader, 1);
    }
}

/* Fills in the tag whose name is at `*at`, and moves `*at` after the name. Returns 0 if markup.py
 * has no such tag. */
static int find_tag(const Reader *reader, const uint8_t **at, Tag *tag) {
    *at = read_word(reader, *at, tag->name, MAX_TAG_NAME - 1);
    if (*at == reader->end) return 0;
    if (!space_bytes(*at, reader->end) && **at != '>' && **at != '/') return 0;
    PyObject *found = PyDict_GetItemString(reader->tags, tag->name);
    long number = found ? PyLong_AsLong(found) : 0;
    tag->kind = (int)(number & 7);
    tag->number = (int)(number >> 3) % NUM_TAGS;
    return found != NULL;
}

/* Returns the byte after the comment that begins at `at`, or NULL. */
static const uint8_t *find_comment_end(Reader *reader, const uint8_t *at) {
    if (reader->unclosed[0] || reader->end - at < 7 || memcmp(at, "<!--", 4) != 0) return NULL;
    for (at += 6; (at = memchr(at, '>', (size_t)(reader->end - at))); at++) {
        if (at[-1] == '-' && at[-2] == '-') return at + 1;
    }
    reader->unclosed[0] = 1;
    return NULL;
}

/* Returns whether the whole word at `at` is this name, in upper or lower case. */
static int is_name(const Reader *reader, const uint8_t *at, const char *name) {
    size_t length = strlen(name);
    size_t same = 0;
    if (reader->end - at <= (Py_ssize_t)length) return 0;
    while (same < length && lower(at[same]) == name[same]) same++;
    return same == length && !is_letter(at[same]) && !is_digit(at[same]);
}

/* Returns the next ">" at or after `at`, or NULL. No bytes are searched for it twice. */
static const uint8_t *find_close(Reader *reader, const uint8_t *at) {
    if (at > reader->last_close) return NULL;
    if (reader->close == NULL || at < reader->close_from || at > reader->close) {
        reader->close_from = at;
        reader->close = memchr(at, '>', (size_t)(reader->end - at));
    }
    return reader->close;
}

/* Returns the ">" that ends a tag, or NULL if the text is no tag. `at` is the byte after the tag's
 * name. A tag may hold comments and nowiki tags. If it holds another "<", it is no tag. */
static const uint8_t *find_tag_end(Reader *reader, const uint8_t *at) {
    for (;;) {
        const uint8_t *close = find_close(reader, at);
        if (close == NULL) return NULL;
        const uint8_t *inner = memchr(at, '<', (size_t)(close - at));
        if (inner == NULL) return close;
        const uint8_t *name = inner + 1 + at_byte(reader, inner + 1, '/');
        const uint8_t *comment_end = find_comment_end(reader, inner);
        if (is_name(reader, name, "nowiki")) at = close + 1;
        else if (comment_end != NULL) at = comment_end;
        else return NULL;
    }
}

/* Returns the byte after a closing tag of this name that begins at `at`, or NULL. A closing tag
 * holds nothing but its name. */
static const uint8_t *match_closer(const Reader *reader, const uint8_t *at, const char *name) {
    if (!at_byte(reader, at + 1, '/') || !is_name(reader, at + 2, name)) return NULL;
    const uint8_t *end = skip_spaces(at + 2 + strlen(name), reader->end);
    return at_byte(reader, end, '>') ? end + 1 : NULL;
}

/* Returns the "<" of the next closing tag of this name, or NULL. */
static const uint8_t *find_closer(const Reader *reader, const uint8_t *at, const char *name) {
    for (; (at = memchr(at, '<', (size_t)(reader->end - at))); at++) {
        if (match_closer(reader, at, name)) return at;
    }
    return NULL;
}

/* Returns the byte after the closing tag of a reference that was opened. It is NULL if another
 * reference is opened before, or if there is no closing tag. */
static const uint8_t *find_reference_end(Reader *reader, const uint8_t *at) {
    for (; (at = memchr(at, '<', (size_t)(reader->end - at))); at++) {
        const uint8_t *end = match_closer(reader, at, "ref");
        if (end) return end;
        end = is_name(reader, at + 1, "ref") ? find_tag_end(reader, at + 1) : NULL;
        if (end && end[-1] != '/') return NULL;
    }
    return NULL;
}

static void read_entity(Reader *reader);

/* Writes the text of a raw tag up to `end`. Entities are replaced; no other markup is read. */
static void show_raw(Reader *reader, const uint8_t *end) {
    while (reader->at < end) {
        const uint8_t *found = memchr(reader->at, '&', (size_t)(end - reader->at));
        take(reader, (size_t)((found ? found : end) - reader->at));
        if (found) read_entity(reader);
    }
}

/* Continues after the closing tag of a raw tag. If there is none, it does nothing. */
static void skip_raw(Reader *reader, const Tag *tag) {
    uint8_t *unclosed = &reader->unclosed[tag->number];
    const uint8_t *closer = *unclosed ? NULL : find_closer(reader, reader->at, tag->name);
    if (closer == NULL) {
        *unclosed = 1;
        return;
    }
    if (tag->kind == RAW_SHOWN) show_raw(reader, closer);
    reader->at = match_closer(reader, closer, tag->name);
}

/* Opens the frame of a reference, a table or an item, or skips the text of a raw tag. Other opening
 * tags do nothing. `reader->at` is after the opening tag. */
static void open_tag(Reader *reader, const Tag *tag) {
    static const uint8_t ITEM_MARK[] = {'\n', 0, '\n'};
    Frame *frame = top(reader);
    if (tag->kind == RAW_DROPPED || tag->kind == RAW_SHOWN) {
        skip_raw(reader, tag);
    } else if (tag->kind == REF) {
        const uint8_t *end = find_reference_end(reader, reader->at);
        if (end) reader->at = end;
        else open_frame(reader, REFERENCE, 0);
    } else if (tag->kind == TABLE_TAG) {
        open_frame(reader, HTML_TABLE, 0);
    } else if (tag->kind == LIST_ITEM) {
        if (frame && frame->kind == ITEM) reader->depth--;
        size_t size = sizeof ITEM_MARK;
        const uint8_t *end = reader->out + reader->length;
        int is_marked = reader->length >= size && memcmp(end - size, ITEM_MARK, size) == 0;
        if (!is_marked) emit(reader, ITEM_MARK, ITEM_MARK + size);
        open_frame(reader, ITEM, 0);
    }
}

/* Closes the frame that a closing tag closes, if there is one. */
static void close_tag(Reader *reader, const Tag *tag) {
    int kind;
    switch (tag->kind) {
        case LIST_ITEM: kind = ITEM; break;
        case TABLE_TAG: kind = HTML_TABLE; break;
        case REF: kind = REFERENCE; break;
        default: return;
    }
    int index = nearest(reader, kind);
    if (index >= 0) drop_frame(reader, index);
}

/* Reads a comment or a known tag, or writes the "<" as text. */
static void read_tag(Reader *reader) {
    const uint8_t *comment_end = find_comment_end(reader, reader->at);
    if (comment_end) {
        reader->at = comment_end;
        return;
    }
    int closes = at_byte(reader, reader->at + 1, '/');
    const uint8_t *at = reader->at + 1 + closes;
    Tag tag;
    const uint8_t *end = find_tag(reader, &at, &tag) ? find_tag_end(reader, at) : NULL;
    if (end == NULL) {
        take(reader, 1);
        return;
    }
    reader->at = end + 1;
    if (tag.kind == BREAK) reader->out[reader->length++] = ' ';
    else if (closes) close_tag(reader, &tag);
    else if (end[-1] != '/') open_tag(reader, &tag);
}

/* Writes the character of a code point in UTF-8. */
static void emit_character(Reader *reader, uint32_t code) {
    uint8_t *out = reader->out + reader->length;
    int extra = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    *out++ = (uint8_t)(extra ? (0xFF00 >> (extra + 1) & 0xFF) | code >> 6 * extra : code);
    for (int left = extra; left-- > 0;) *out++ = (uint8_t)(0x80 | (code >> 6 * left & 0x3F));
    reader->length += (size_t)extra + 1;
}

/* Reads the number at `*at`, and moves `*at` after it. Returns the number, or some number beyond
 * Unicode if it is too large. */
static uint32_t read_number(const Reader *reader, const uint8_t **at, uint32_t base) {
    uint32_t code = 0;
    for (; *at < reader->end; ++*at) {
        int byte = lower(**at);
        if (!is_digit(byte) && !is_letter(byte)) break;
        int digit = is_digit(byte) ? byte - '0' : byte - 'a' + 10;
        if ((uint32_t)digit >= base) break;
        if (code <= 0x10FFFF) code = code * base + (uint32_t)digit;
    }
    return code;
}

/* Reads the name of an entity at `*at`, and moves `*at` after it. Returns its code point, or 0. */
static uint32_t read_name(const Reader *reader, const uint8_t **at) {
    char name[MAX_ENTITY_NAME + 1] = {0};
    const uint8_t *start = *at;
    while (*at < reader->end && *at - start < MAX_ENTITY_NAME) {
        if (!is_letter(**at) && !is_digit(**at)) break;
        name[*at - start] = (char)**at;
        ++*at;
    }
    if (*at == start || !at_byte(reader, *at, ';')) return 0;
    PyObject *found = PyDict_GetItemString(reader->entities, name);
    return found ? (uint32_t)PyLong_AsUnsignedLong(found) : 0;
}

/* Writes the character that an entity stands for, or the "&" as text. */
static void read_entity(Reader *reader) {
    const uint8_t *at = reader->at + 1;
    uint32_t code;
    if (at_byte(reader, at, '#')) {
        int is_hexadecimal = at + 1 < reader->end && lower(at[1]) == 'x';
        at += 1 + is_hexadecimal;
        code = read_number(reader, &at, is_hexadecimal ? 16 : 10);
    } else {
        code = read_name(reader, &at);
    }
    int is_half = code >= 0xD800 && code < 0xE000; /* of a surrogate pair */
    if (code < 1 || code > 0x10FFFF || is_half || !at_byte(reader, at, ';')) {
        take(reader, 1);
        return;
    }
    emit_character(reader, code);
    reader->at = at + 1;
}

/* Writes a line end. The title of a link, or an external link, cannot continue after it, so their
 * frames are removed and their openers stay as text. */
static void read_line_end(Reader *reader) {
    while (in_title(reader) || (reader->depth && top(reader)->kind == EXTERNAL)) reader->depth--;
    take(reader, 1);
}

/* Reads the page to its end, or until a Python function fails. */
static void read_page(Reader *reader) {
    while (reader->at < reader->end && !reader->failed) {
        reader->plain_start = reader->at;
        while (reader->at < reader->end && !SPECIAL[*reader->at]) reader->at++;
        emit(reader, reader->plain_start, reader->at);
        if (reader->at == reader->end) break;
        switch (*reader->at) {
            case '\n': read_line_end(reader); break;
            case '&': read_entity(reader); break;
            case ':': read_colon(reader); break;
            case '<': read_tag(reader); break;
            case '[': read_open_bracket(reader); break;
            case ']': read_close_bracket(reader); break;
            case '{': read_open_braces(reader); break;
            case '|': read_pipe(reader); break;
            default: read_close_braces(reader); break;
        }
    }
}

/* The function that Python calls: its arguments are explained at the end of this file. */
static PyObject *render(PyObject *Py_UNUSED(self), PyObject *arguments) {
    const char *source;
    Py_ssize_t size;
    Reader *reader = calloc(1, sizeof *reader);
    if (reader == NULL) return PyErr_NoMemory();
    PyObject *result = NULL;
    PyObject *kind = (PyObject *)&PyDict_Type;
    if (PyArg_ParseTuple(
            arguments, "s#OOOO!O!O!", &source, &size, &reader->hidden, &reader->show,
            &reader->convert, kind, &reader->tags, kind, &reader->schemes, kind, &reader->entities
        )) {
        reader->begin = (const uint8_t *)source;
        reader->at = reader->begin;
        reader->end = reader->at + size;
        reader->last_close = reader->end - 1;
        while (reader->last_close >= reader->begin && *reader->last_close != '>')
            reader->last_close--;
        reader->out = malloc((size_t)size + (size_t)size / 2 + 1);
        const char *out = (const char *)reader->out;
        if (out == NULL) PyErr_NoMemory();
        else read_page(reader);
        if (out != NULL && !reader->failed)
            result = PyUnicode_DecodeUTF8(out, (Py_ssize_t)reader->length, NULL);
        free(reader->out);
    }
    free(reader);
    return result;
}

static PyMethodDef methods[] = {
    {"render", render, METH_VARARGS,
     "render(text, hidden, show, convert, tags, schemes, entities): Returns the text that a page"
     " shows. hidden(title) returns whether a link is not shown, show(call) the text that a"
     " template shows, and convert(content) the variant that is shown of several. The dictionaries"
     " are TABLES of wikitext.py."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, .m_name = "pipeline.wiki._wikitext", .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__wikitext(void) { return PyModuleDef_Init(&module); }
