"""Settings for all tests: what Hypothesis finds is the same on every run and every machine."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fixed",
    deadline=None,  # kernels compile on first use
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# For a longer look by hand: pytest --hypothesis-profile=search
settings.register_profile(
    "search", settings.get_profile("fixed"), derandomize=False, max_examples=2000
)
settings.load_profile("fixed")

# Files with few tests that take long. Begun first, they do not keep one core at work at the end
# while the others have nothing left to do.
LONG = [
    *("test_docs.py", "test_ray.py", "test_soak.py", "test_fuzz.py", "test_table1.py"),
    *("test_site.py", "test_examples.py", "test_certificate.py", "test_audit.py", "test_serve.py"),
    *("test_full_disk.py", "test_loss.py", "test_kernels.py", "test_hotel.py", "test_utility.py"),
]


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.name, len(LONG)))
