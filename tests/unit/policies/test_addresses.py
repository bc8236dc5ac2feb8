"""Which addresses a client's URL may lead to."""

import pytest

from policies.addresses import is_public, may_be_asked


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111", "::ffff:93.184.216.34", "64:ff9b::5db8:d822"]
)
def test_the_public_internet_may_be_reached(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.8.9.1",
        "0.0.0.0",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",  # metadata of most clouds
        "100.64.0.1",
        "100.100.100.200",  # Alibaba's metadata
        "168.63.129.16",  # Azure's
        "192.0.0.192",  # Oracle's
        "192.88.99.1",
        "198.18.0.1",
        "224.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::",
        "::1",
        "::127.0.0.1",  # the form before ::ffff:
        "::ffff:127.0.0.1",
        "::ffff:169.254.169.254",
        "::ffff:0:127.0.0.1",  # translated
        "64:ff9b::7f00:1",  # NAT64 of 127.0.0.1
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a00:1",  # a network's own NAT64
        "2002:7f00:1::",  # 6to4 of 127.0.0.1
        "2001:0:7f00:1::",  # Teredo
        "2001:db8::1",
        "fd00:ec2::254",  # Amazon's metadata
        "fc00::1",
        "fe80::1",
        "fe80::1%eth0",
        "fec0::1",
        "ff02::1",
        "",
        "localhost",
        "0x7f000001",
    ],
)
def test_our_own_networks_may_not(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://hooks.example.com/x?y=1", True),
        ("HTTPS://hooks.example.com:8443/x", True),
        ("https://93.184.216.34/", True),
        ("http://hooks.example.com/x", False),
        ("ftp://hooks.example.com/x", False),
        ("https://", False),
        ("https://[::1", False),
        ("https://localhost/", False),
        ("https://a.localhost./", False),
        ("https://metadata.google.internal/", False),
        ("https://127.0.0.1/", False),
        ("https://2130706433/", False),
        ("https://0x7f.1/", False),
        ("https://[::ffff:10.0.0.1]/", False),
        ("http://inside.corp/x", True),
        ("https://INSIDE.corp/x", True),
        ("file://inside.corp/x", False),
    ],
)
def test_a_url_is_asked_only_over_https_and_not_where_it_says_that_it_is_inside(url: str, may: bool) -> None:
    assert may_be_asked(url, {"inside.corp"}) is may
