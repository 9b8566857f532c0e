"""The 1,797 real handwritten digits that scikit-learn ships."""

from kr_kfp_components.data.digits.component import digits

__all__ = ["digits"]
