"""Environment variables of the INT2 KV cache; every field is grafted into ``Envs`` of the wheel's own module."""

from sglang.srt.environ import EnvBool, EnvFloat, EnvInt, EnvStr


class Envs:
    SGLANG_OSCAR_K_ROTATION_PATH = EnvStr("")
    SGLANG_OSCAR_V_ROTATION_PATH = EnvStr("")
    SGLANG_OSCAR_K_CLIP_RATIO = EnvFloat(0.0)
    SGLANG_OSCAR_V_CLIP_RATIO = EnvFloat(0.0)
    SGLANG_LLOYD_MAX = EnvBool(False)
    SGLANG_OSCAR_KERNELS = EnvStr("native")
    SGLANG_OSCAR_PREFILL = EnvStr("stream")
    SGLANG_CHUNK_DECODE_CAP = EnvInt(0)
    SGLANG_CHUNK_FAIR_FLOOR = EnvInt(0)
