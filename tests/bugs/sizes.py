"""Image sizes on which networks and planners of this kind failed: odd, tiny, strip-shaped, not square."""

__all__ = ["SIZES"]

SIZES = [
    (224, 224),
    (96, 160),
    (97, 131),
    (255, 257),
    (20, 30),
    (33, 31),
    (32, 32),
    (31, 65),
    (8, 300),
    (300, 8),
    (7, 7),
    (3, 5),
    (1, 1),
    (64, 33),
    (190, 47),
]
