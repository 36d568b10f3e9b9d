"""Stores payloads in other formats than plain JSON: other serialisers, compression, encryption.

A :class:`PayloadFormat` belongs to a job type, so clients and workers share it::

    from queuert import JobType
    from queuert.codecs import EncryptionCodec, PayloadFormat, ZlibCodec, parse_keys

    def keys():
        return parse_keys(os.environ["PAYLOAD_KEYS"])

    encryption = EncryptionCodec(keys)
    secret = PayloadFormat(codecs=[ZlibCodec(), encryption])
    bill = JobType("bill", input=Bill, output=Receipt, format=secret)

The names of the steps are stored with each payload, so the format can be changed while jobs are in flight.
"""

from queuert.codecs.base import Codec, Place, Serde
from queuert.codecs.compression import ZlibCodec
from queuert.codecs.encryption import EncryptionCodec, EncryptionKey, parse_keys
from queuert.codecs.formats import PLAIN, PayloadFormat
from queuert.errors import CodecError

__all__ = [
    "PayloadFormat",
    "PLAIN",
    "Serde",
    "Codec",
    "CodecError",
    "Place",
    "ZlibCodec",
    "EncryptionCodec",
    "EncryptionKey",
    "parse_keys",
]
