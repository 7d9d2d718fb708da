"""The checkout's root is the package `recallmap`; its four folders are packages below it."""

from setuptools import find_packages, setup

inside = find_packages(
    include=[f"{pillar}{rest}" for pillar in ("synth", "arch", "search", "results") for rest in ("", ".*")]
)
setup(packages=["recallmap", *(f"recallmap.{name}" for name in inside)], package_dir={"recallmap": "."})
