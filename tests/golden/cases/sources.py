"""What the shipped source has to survive."""

from kfp import dsl

import kr_kfp
from kr_kfp import context as place


def helper(text: str) -> str:
    """Stand beside the function."""
    return text * 2


@kr_kfp.component(additional_funcs=[helper], base_image="ml:1", install_kr_kfp_package=False)
def texts(text: str = "$$ $(HOME) python3 'q\" ü") -> str:
    """Give texts that a shell, a kubelet or kfp.local would like to change."""
    return helper(text) + "$$ $(HOME) python3 'q\" ü \\n" + str(place().host)


@dsl.component(base_image="ml:2", packages_to_install=["scikit-learn"], install_kfp_package=False)
def plain(rows: dsl.Output[dsl.Dataset]) -> None:
    """Be made by KFP alone."""
    print(rows.path)


CASES = {"source-texts": texts, "source-lifted": kr_kfp.component(accelerator="v5litepod-16")(plain)}
