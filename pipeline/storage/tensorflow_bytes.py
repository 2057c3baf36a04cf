"""Encodes the parts of TensorFlow's files: fields of protocol buffers, and checksums."""

_MASK_DELTA = 0xA282EAD8


def masked_crc32c(data: bytes) -> int:
    """Returns the masked crc32c of some bytes, as TFRecord files and LevelDB store it.

    The checksum is rotated and a constant is added, because the crc32c of data that contain their
    own crc32c is a weak check.

    Raises:
        ModuleNotFoundError: google_crc32c is not installed.
    """
    import google_crc32c

    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


def varint(value: int) -> bytes:
    """Returns a number as protocol buffers encode it: seven bits per byte, the lowest first."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def bytes_field(number: int, data: bytes) -> bytes:
    """Returns a field of a protocol buffer that holds text, bytes or another message.

    Args:
        number: The number of the field in its message.
        data: The encoded content.
    """
    return varint(number << 3 | 2) + varint(len(data)) + data
