"""How payloads are stored: other serialisers than JSON, compression, encryption.

A :class:`PayloadFormat` belongs to a job type, and so to all who start its jobs and all who run them::

    from queuert import JobType
    from queuert.codecs import EncryptionCodec, PayloadFormat, ZlibCodec, parse_keys

    def keys():
        return parse_keys(os.environ["PAYLOAD_KEYS"])

    encryption = EncryptionCodec(keys)
    secret = PayloadFormat(codecs=[ZlibCodec(), encryption])
    bill = JobType("bill", input=Bill, output=Receipt, format=secret)

Which format wrote a payload stands beside it, so that one format follows another while jobs are in flight.
"""

from queuert.codecs.base import Codec, CodecError, Place, Serde
from queuert.codecs.compression import ZlibCodec
from queuert.codecs.encryption import EncryptionCodec, EncryptionKey, parse_keys
from queuert.codecs.formats import PLAIN, PayloadFormat

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
