from __future__ import annotations

import pytest

from backends.static_batch.fastchat.worker_address import AddressRule, BadWorkerAddress


@pytest.mark.parametrize(
    "address",
    [
        "http://localhost:21002",
        "http://127.0.0.1:21002/",
        "https://10.1.2.3",
        "http://172.16.0.9:80/vicuna",
        "http://192.168.1.4:21002",
        "http://[::1]:21002",
        "http://[fd12::7]:21002",
        "http://[::ffff:10.0.0.1]:21002",
    ],
)
def test_workers_nearby_may_register(address: str) -> None:
    AddressRule().check(address)


@pytest.mark.parametrize(
    "address",
    [
        "http://169.254.169.254/latest",  # a cloud's metadata service
        "http://[::ffff:169.254.169.254]",
        "http://8.8.8.8:21002",
        "http://172.32.0.1:21002",
        "http://0.0.0.0:21002",
        "http://[fe80::1]:21002",
        "http://[2001:db8::1]:21002",
        "http://worker.example:21002",
        "http://localhost.example:21002",
        "http://0x7f000001:21002",
        "http://2130706433:21002",
    ],
)
def test_a_host_elsewhere_must_be_listed(address: str) -> None:
    with pytest.raises(BadWorkerAddress, match="add it to the backend's option worker_hosts"):
        AddressRule().check(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost:21002",
        "ftp://127.0.0.1:21002",
        "file:///etc/passwd",
        "http://",
        "http://127.0.0.1:99999",
        "http://127.0.0.1:x",
        "http://[::1:21002",
        "http://user@127.0.0.1:21002",
        "http://127.0.0.1:21002?x=1",
        "http://127.0.0.1:21002#x",
        "http://127.0.0.1\\@8.8.8.8:21002",
        "http://127.0.0.1:21002/\r\nHost: x",
        "http://127.0.0.1 :21002",
    ],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(BadWorkerAddress, match="must look like http://10"):
        AddressRule().check(address)


def test_a_listed_host_may_register_whatever_it_is() -> None:
    rule = AddressRule(listed_hosts=frozenset({"worker.example", "8.8.8.8"}))

    rule.check("https://Worker.Example:21002")
    rule.check("http://8.8.8.8")
    with pytest.raises(BadWorkerAddress):
        rule.check("http://other.example")
