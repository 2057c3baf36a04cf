"""What TensorFlow's files are made of: protocol buffers, and the crc32c beside what it covers."""

_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """crc32c, rotated and moved: LevelDB's way of storing one beside what it covers."""
    import google_crc32c

    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    """A number of a protocol buffer: seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def bytes_field(number: int, data: bytes) -> bytes:
    """A field that is text, bytes or another message."""
    return varint(number << 3 | 2) + varint(len(data)) + data
