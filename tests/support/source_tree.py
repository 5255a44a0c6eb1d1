"""Where the product's modules lie, for the tests of its architecture."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE_ROOTS = {
    "continuum_router": ROOT / "router",
    "continuum_kv_listener": ROOT / "kv_listener",
    "continuum_shared": ROOT / "shared",
}


def module_files() -> dict[str, Path]:
    """Dotted module name -> file, of all three packages, packages' ``__init__`` left out."""
    found = {}
    for package, root in PACKAGE_ROOTS.items():
        for path in sorted((root / package).rglob("*.py")):
            if path.name != "__init__.py":
                found[".".join(path.relative_to(root).with_suffix("").parts)] = path
    return found


def init_files() -> list[Path]:
    """Every ``__init__.py`` of the product."""
    return [
        p for package, root in PACKAGE_ROOTS.items() for p in (root / package).rglob("__init__.py")
    ]
