/* One bzip2 stream to bytes, as its input comes.
 *
 * libbz2 spends half of its time on the inverse of the Burrows-Wheeler transform: one load a byte, each from an address
 * that the one before gave, in 3.6 MB. Here a load gives two bytes and the row after both. The bytes that a row begins
 * with need no load, as rows are sorted.
 *
 * The format: a header ("BZh" and the block size in 100 kB), blocks, and an end with a checksum of all. A block is its
 * checksum, the row of the transform that is the text, the bytes that it uses, two to six prefix codes, which of them
 * codes each fifty symbols, and the symbols: runs of the byte at the front of a list, or a place in this list, from
 * where the byte moves to the front. The text then has a count behind every four equal bytes. */

#ifndef BEAMBERT_BZIP2_H
#define BEAMBERT_BZIP2_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BLOCK 900000
#define MAX_CODE_BITS 20
#define FAST_BITS 10
#define MAX_SYMBOLS 258
#define MAX_CODES 6
#define GROUP_SYMBOLS 50
#define MAX_GROUPS (1 << 15)
#define ROWS_A_CELL 64
#define BLOCK_MARK 0x314159265359
#define END_MARK 0x177245385090
#define MAX_RUN (1 << 21)

typedef struct {
    const uint8_t *at, *end;
    uint64_t bits;  /* the next ones, from the top */
    int num_bits;
    int is_short;   /* more were asked for than there are */
} BitReader;

typedef struct {
    uint16_t fast[1 << FAST_BITS];       /* symbol << 5 | bits of its code; 0 where it is longer than FAST_BITS */
    uint32_t limit[MAX_CODE_BITS + 2];   /* codes of so many bits are below, as 20 bits */
    int32_t first[MAX_CODE_BITS + 2];    /* place in `symbols` of a code of so many bits, less the code */
    uint16_t symbols[MAX_SYMBOLS];
} PrefixCode;

enum Phase { STREAM_START, BLOCK_START, SYMBOLS, TEXT, ENDED, FAILED };
enum Status { NEEDS_INPUT, FULL, AT_END, BROKEN };

typedef struct {
    enum Phase phase;
    BitReader reader;
    const char *problem;
    uint32_t block_size, stream_checksum;
    /* The block at hand. */
    uint32_t checksum, text_row, num_bytes, counts[256];
    int num_codes, num_groups, num_used, group, num_left;
    uint32_t run, run_weight;
    uint8_t front[256];
    /* Its text on the way out. */
    uint32_t at, seen_checksum, repeats;
    int equal, last;
    PrefixCode codes[MAX_CODES];
    uint8_t code_of_group[MAX_GROUPS];
    uint8_t cells[MAX_BLOCK / ROWS_A_CELL + 1];
    uint32_t rows[MAX_BLOCK + 4];        /* row of the rotation one byte on << 8 | the last byte of this row */
    uint32_t pairs[MAX_BLOCK];           /* row of the rotation two bytes on << 12 | the second byte of this row */
    uint8_t text[MAX_BLOCK];
} Decoder;

static uint32_t checksum_table[8][256];

static void make_checksum_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t value = byte << 24;
        for (int bit = 0; bit < 8; bit++) value = value << 1 ^ (value >> 31 ? 0x04C11DB7 : 0);
        checksum_table[0][byte] = value;
    }
    for (int each = 1; each < 8; each++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = checksum_table[each - 1][byte];
            checksum_table[each][byte] = before << 8 ^ checksum_table[0][before >> 24];
        }
    }
}

static inline uint64_t load_big(const uint8_t *at) {
    uint64_t value = 0;
    for (int each = 0; each < 8; each++) value = value << 8 | at[each];
    return value;
}

static inline uint64_t load_little(const uint8_t *at) {
    uint64_t value = 0;
    for (int each = 7; each >= 0; each--) value = value << 8 | at[each];
    return value;
}

static inline void store_little(uint8_t *at, uint64_t value) {
    for (int each = 0; each < 8; each++) at[each] = (uint8_t)(value >> 8 * each);
}

static uint32_t add_to_checksum(uint32_t value, const uint8_t *at, size_t size) {
    for (; size >= 8; at += 8, size -= 8) {
        uint64_t word = load_big(at) ^ (uint64_t)value << 32;
        value = 0;
        for (int each = 0; each < 8; each++) value ^= checksum_table[7 - each][word >> (56 - 8 * each) & 255];
    }
    for (; size; at++, size--) value = value << 8 ^ checksum_table[0][value >> 24 ^ *at];
    return value;
}

/* ---- bits ---- */

/* At least 56 bits, where the input has them. Those beyond `num_bits` may be set already, as they are in the input. */
static inline void refill(BitReader *reader) {
    if (reader->end - reader->at >= 8) {
        int bytes = (63 - reader->num_bits) >> 3;
        reader->bits |= load_big(reader->at) >> reader->num_bits;
        reader->at += bytes;
        reader->num_bits += 8 * bytes;
    } else {
        for (; reader->num_bits < 56 && reader->at < reader->end; reader->num_bits += 8) {
            reader->bits |= (uint64_t)*reader->at++ << (56 - reader->num_bits);
        }
    }
}

static inline void drop_bits(BitReader *reader, int count) {
    reader->bits <<= count;
    reader->num_bits -= count;
}

/* 1 to 32 bits as a number; 0 where the input has fewer. */
static inline uint32_t read_bits(BitReader *reader, int count) {
    if (reader->num_bits < count) refill(reader);
    if (reader->num_bits < count) {
        reader->is_short = 1;
        return 0;
    }
    uint32_t value = (uint32_t)(reader->bits >> (64 - count));
    drop_bits(reader, count);
    return value;
}

static inline uint64_t read_mark(BitReader *reader) {
    uint64_t high = read_bits(reader, 24);
    return high << 24 | read_bits(reader, 24);
}

/* ---- a block's head ---- */

static int fail(Decoder *decoder, const char *problem) {
    decoder->problem = problem;
    return 0;
}

static int read_used_bytes(Decoder *decoder, BitReader *reader) {
    uint32_t sixteens = read_bits(reader, 16);
    decoder->num_used = 0;
    for (int high = 0; high < 16; high++) {
        uint32_t used = sixteens >> (15 - high) & 1 ? read_bits(reader, 16) : 0;
        for (int low = 0; low < 16; low++) {
            if (used >> (15 - low) & 1) decoder->front[decoder->num_used++] = (uint8_t)(high * 16 + low);
        }
    }
    return decoder->num_used > 0 || fail(decoder, "a block of no bytes");
}

static int read_code_of_groups(Decoder *decoder, BitReader *reader) {
    uint8_t front[MAX_CODES] = {0, 1, 2, 3, 4, 5};
    decoder->num_codes = (int)read_bits(reader, 3);
    decoder->num_groups = (int)read_bits(reader, 15);
    if (decoder->num_codes < 2 || decoder->num_codes > MAX_CODES) return fail(decoder, "a wrong number of codes");
    if (decoder->num_groups < 1) return fail(decoder, "a block of no symbols");
    for (int group = 0; group < decoder->num_groups && !reader->is_short; group++) {
        int place = 0;
        while (read_bits(reader, 1)) {
            if (++place == decoder->num_codes) return fail(decoder, "a code that does not exist");
        }
        uint8_t code = front[place];
        memmove(front + 1, front, (size_t)place);
        decoder->code_of_group[group] = front[0] = code;
    }
    return 1;
}

/* Shorter codes come first, and those of a length in the order of their symbols. */
static int make_code(Decoder *decoder, PrefixCode *code, const uint8_t *lengths, int num_symbols) {
    uint32_t next = 0;
    int place = 0;
    memset(code->fast, 0, sizeof code->fast);
    for (int length = 1; length <= MAX_CODE_BITS; length++, next <<= 1) {
        code->first[length] = place - (int32_t)next;
        for (int symbol = 0; symbol < num_symbols; symbol++) {
            if (lengths[symbol] != length) continue;
            if (next >> length) return fail(decoder, "a code with more symbols than it has room for");
            code->symbols[place++] = (uint16_t)symbol;
            if (length <= FAST_BITS) {
                uint16_t *entry = code->fast + (next << (FAST_BITS - length));
                for (int each = 0; each < 1 << (FAST_BITS - length); each++) {
                    entry[each] = (uint16_t)(symbol << 5 | length);
                }
            }
            next++;
        }
        code->limit[length] = next << (MAX_CODE_BITS - length);
    }
    return 1;
}

/* A length is counted from the one before, a bit or two a step. No writer takes more steps than there are lengths; one
 * that did could make a block's head, which is kept until all of it is there, as long as it liked. */
static int read_codes(Decoder *decoder, BitReader *reader) {
    int num_symbols = decoder->num_used + 2;
    for (int each = 0; each < decoder->num_codes; each++) {
        uint8_t lengths[MAX_SYMBOLS];
        int length = (int)read_bits(reader, 5);
        for (int symbol = 0; symbol < num_symbols; symbol++) {
            for (int num_steps = 0;; num_steps++) {
                if (reader->is_short) return 1;
                if (num_steps == MAX_CODE_BITS) return fail(decoder, "a code's length that goes up and down");
                if (length < 1 || length > MAX_CODE_BITS) return fail(decoder, "a code of a wrong length");
                if (!read_bits(reader, 1)) break;
                length += read_bits(reader, 1) ? -1 : 1;
            }
            lengths[symbol] = (uint8_t)length;
        }
        if (!reader->is_short && !make_code(decoder, decoder->codes + each, lengths, num_symbols)) return 0;
    }
    return 1;
}

static int read_block_head(Decoder *decoder, BitReader *reader) {
    decoder->checksum = read_bits(reader, 32);
    int is_randomised = (int)read_bits(reader, 1);
    decoder->text_row = read_bits(reader, 24);
    if (reader->is_short) return 1;
    if (is_randomised) {
        return fail(decoder, "a block that bzip2 0.9.0 or an older one wrote: decompress it, and compress it again");
    }
    int is_whole = read_used_bytes(decoder, reader) && read_code_of_groups(decoder, reader);
    return reader->is_short || (is_whole && read_codes(decoder, reader));
}

/* ---- symbols ---- */

/* Moves the byte at a place to the front, and gives it. */
static inline uint8_t move_to_front(uint8_t *front, int place) {
    uint64_t low = load_little(front);
    if (place < 8) {
        uint8_t byte = (uint8_t)(low >> 8 * place);
        uint64_t moved = (2ULL << (8 * place + 7)) - 1;
        store_little(front, (low & ~moved) | (low << 8 & moved) | byte);
        return byte;
    }
    if (place < 16) {
        uint64_t high = load_little(front + 8);
        int shift = 8 * (place - 8);
        uint8_t byte = (uint8_t)(high >> shift);
        uint64_t moved = (2ULL << (shift + 7)) - 1;
        store_little(front + 8, (high & ~moved) | (high << 8 & moved) | low >> 56);
        store_little(front, low << 8 | byte);
        return byte;
    }
    uint8_t byte = front[place];
    memmove(front + 1, front, (size_t)place);
    return front[0] = byte;
}

/* The symbol and its bits (symbol << 5 | bits) of a code longer than FAST_BITS; 0 where there is none. */
static uint32_t find_long_code(const PrefixCode *code, uint64_t bits, int num_symbols) {
    uint32_t value = (uint32_t)(bits >> (64 - MAX_CODE_BITS));
    int length = FAST_BITS + 1;
    while (length <= MAX_CODE_BITS && value >= code->limit[length]) length++;
    if (length > MAX_CODE_BITS) return 0;
    int32_t place = (int32_t)(value >> (MAX_CODE_BITS - length)) + code->first[length];
    return place < 0 || place >= num_symbols ? 0 : (uint32_t)code->symbols[place] << 5 | (uint32_t)length;
}

/* Reads symbols into the low bytes of `rows`; FULL at the block's end. */
static enum Status read_symbols(Decoder *decoder) {
    BitReader reader = decoder->reader;
    const PrefixCode *code = decoder->codes + decoder->code_of_group[decoder->group < 0 ? 0 : decoder->group];
    uint32_t num_bytes = decoder->num_bytes, run = decoder->run, weight = decoder->run_weight;
    uint32_t *rows = decoder->rows;
    int num_left = decoder->num_left, last_symbol = decoder->num_used + 1;
    enum Status status = BROKEN;
    for (;;) {
        if (num_left == 0) {
            if (++decoder->group == decoder->num_groups) {
                fail(decoder, "a block without an end");
                break;
            }
            code = decoder->codes + decoder->code_of_group[decoder->group];
            num_left = GROUP_SYMBOLS;
        }
        if (reader.num_bits < MAX_CODE_BITS) refill(&reader);
        uint32_t entry = code->fast[reader.bits >> (64 - FAST_BITS)];
        if (entry == 0) entry = find_long_code(code, reader.bits, last_symbol + 1);
        int bits = (int)(entry & 31), symbol = (int)(entry >> 5);
        if (entry == 0 && reader.num_bits >= MAX_CODE_BITS) {
            fail(decoder, "a code of no symbol");
            break;
        }
        if (entry == 0 || bits > reader.num_bits) {
            status = NEEDS_INPUT;
            break;
        }
        drop_bits(&reader, bits);
        num_left--;
        if (symbol < 2) {
            run += weight << symbol;
            weight <<= 1;
            if (weight <= MAX_RUN) continue;
            fail(decoder, "a block longer than its stream allows");
            break;
        }
        if (run) {
            uint8_t byte = decoder->front[0];
            if (run > decoder->block_size - num_bytes) {
                fail(decoder, "a block longer than its stream allows");
                break;
            }
            for (uint32_t each = 0; each < run; each += 4) {  /* `rows` has room for three more */
                uint32_t *at = rows + num_bytes + each;
                at[0] = at[1] = at[2] = at[3] = byte;
            }
            decoder->counts[byte] += run;
            num_bytes += run;
            run = 0;
            weight = 1;
        }
        if (symbol == last_symbol) {
            status = FULL;
            break;
        }
        if (num_bytes == decoder->block_size) {
            fail(decoder, "a block longer than its stream allows");
            break;
        }
        uint8_t byte = move_to_front(decoder->front, symbol - 1);
        decoder->counts[byte]++;
        rows[num_bytes++] = byte;
    }
    decoder->reader = reader;
    decoder->num_bytes = num_bytes, decoder->run = run, decoder->run_weight = weight, decoder->num_left = num_left;
    return status;
}

/* ---- the inverse of the transform ---- */

/* Rows are the sorted rotations of the text; all that begin with a byte stand together, in the order of what follows.
 * Within them, so, both the row one byte on and the row two bytes on ascend: the loops that find these run through
 * memory forwards, in as many places as there are bytes. */
static void invert(Decoder *decoder) {
    uint32_t *rows = decoder->rows, *pairs = decoder->pairs, num_rows = decoder->num_bytes;
    uint32_t next[256], ends[256], start = 0;
    uint8_t bytes[256];
    int num_used = 0;
    for (int byte = 0; byte < 256; byte++) {
        next[byte] = start;
        start += decoder->counts[byte];
        if (decoder->counts[byte]) ends[num_used] = start, bytes[num_used++] = (uint8_t)byte;
    }
    for (uint32_t row = 0; row < num_rows; row++) rows[next[rows[row] & 255]++] |= row << 8;
    uint32_t row = 0;
    for (int used = 0, each = 0; used < num_used; used++, each = 0) {
        for (; row < ends[used]; row++) {
            uint32_t second = rows[row] >> 8;
            while (second >= ends[each]) each++;
            pairs[row] = rows[second] >> 8 << 12 | bytes[each];
        }
    }
    uint8_t *cells = decoder->cells;
    for (uint32_t cell = 0, each = 0; cell * ROWS_A_CELL < num_rows; cell++) {
        while (cell * ROWS_A_CELL >= ends[each]) each++;
        cells[cell] = (uint8_t)each;
    }
    row = decoder->text_row;
    for (uint32_t at = 0; at < num_rows; at += 2) {
        uint32_t pair = pairs[row];
        int each = cells[row / ROWS_A_CELL];
        while (row >= ends[each]) each++;
        decoder->text[at] = bytes[each];
        if (at + 1 < num_rows) decoder->text[at + 1] = (uint8_t)pair;
        row = pair >> 12;
    }
}

/* ---- text ---- */

static size_t write_text(Decoder *decoder, uint8_t *out, size_t room) {
    const uint8_t *text = decoder->text;
    uint32_t at = decoder->at, num_bytes = decoder->num_bytes;
    int equal = decoder->equal, last = decoder->last;
    size_t size = 0;
    while (size < room) {
        if (decoder->repeats) {
            size_t count = decoder->repeats < room - size ? decoder->repeats : room - size;
            memset(out + size, last, count);
            size += count;
            decoder->repeats -= (uint32_t)count;
            continue;
        }
        while (at < num_bytes && equal < 4 && size < room) {
            equal = text[at] == last ? equal + 1 : 1;
            out[size++] = text[at++];
            last = out[size - 1];
        }
        if (at == num_bytes) break;
        if (equal == 4 && size < room) decoder->repeats = text[at++], equal = 0;
    }
    decoder->at = at, decoder->equal = equal, decoder->last = last;
    decoder->seen_checksum = add_to_checksum(decoder->seen_checksum, out, size);
    return size;
}

/* ---- the stream ---- */

static enum Status start_stream(Decoder *decoder) {
    BitReader reader = decoder->reader;
    uint32_t head = read_bits(&reader, 32);
    if (reader.is_short) return NEEDS_INPUT;
    uint32_t size = (head & 255) - '0';
    if (head >> 8 != 0x425A68 || size < 1 || size > 9) return fail(decoder, "no header of bzip2"), BROKEN;
    decoder->reader = reader;
    decoder->block_size = size * 100000;
    decoder->stream_checksum = 0;
    decoder->phase = BLOCK_START;
    return FULL;
}

/* The head of a block is read from its beginning until all of it is there. */
static enum Status start_block(Decoder *decoder) {
    BitReader reader = decoder->reader;
    uint64_t mark = read_mark(&reader);
    if (mark == END_MARK) {
        uint32_t checksum = read_bits(&reader, 32);
        if (reader.is_short) return NEEDS_INPUT;
        if (checksum != decoder->stream_checksum) return fail(decoder, "a checksum of other blocks"), BROKEN;
        drop_bits(&reader, reader.num_bits & 7);
        reader.at -= reader.num_bits / 8;
        reader.bits = 0, reader.num_bits = 0;
        decoder->reader = reader;
        decoder->phase = ENDED;
        return AT_END;
    }
    if (!reader.is_short && mark != BLOCK_MARK) return fail(decoder, "neither a block nor an end"), BROKEN;
    if (!reader.is_short && !read_block_head(decoder, &reader)) return BROKEN;
    if (reader.is_short) return NEEDS_INPUT;
    decoder->reader = reader;
    decoder->num_bytes = 0, decoder->run = 0, decoder->run_weight = 1, decoder->group = -1, decoder->num_left = 0;
    memset(decoder->counts, 0, sizeof decoder->counts);
    decoder->phase = SYMBOLS;
    return FULL;
}

static enum Status finish_symbols(Decoder *decoder) {
    enum Status status = read_symbols(decoder);
    if (status != FULL) return status;
    if (decoder->text_row >= decoder->num_bytes) return fail(decoder, "a text that begins nowhere"), BROKEN;
    invert(decoder);
    decoder->at = 0, decoder->seen_checksum = ~0U, decoder->repeats = 0, decoder->equal = 0, decoder->last = 0;
    decoder->phase = TEXT;
    return FULL;
}

static enum Status finish_text(Decoder *decoder, uint8_t *out, size_t room, size_t *size) {
    *size += write_text(decoder, out + *size, room - *size);
    if (decoder->repeats || decoder->at < decoder->num_bytes) return FULL;
    if (~decoder->seen_checksum != decoder->checksum) return fail(decoder, "a block of another checksum"), BROKEN;
    decoder->stream_checksum = (decoder->stream_checksum << 1 | decoder->stream_checksum >> 31) ^ decoder->checksum;
    decoder->phase = BLOCK_START;
    return FULL;
}

/* Writes up to `room` bytes. FULL: there may be more, without more input. */
static enum Status decode(Decoder *decoder, uint8_t *out, size_t room, size_t *size) {
    *size = 0;
    for (;;) {
        enum Status status = AT_END;
        switch (decoder->phase) {
            case STREAM_START: status = start_stream(decoder); break;
            case BLOCK_START: status = start_block(decoder); break;
            case SYMBOLS: status = finish_symbols(decoder); break;
            case TEXT: status = finish_text(decoder, out, room, size); break;
            case ENDED: break;
            case FAILED: status = BROKEN; break;
        }
        if (status == BROKEN) decoder->phase = FAILED;
        if (status != FULL || (decoder->phase == TEXT && *size == room)) return status;
    }
}

#endif
