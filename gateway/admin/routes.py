"""Path and method to handler: the table of the admin API.

What changes something needs a key that may write.
"""

from __future__ import annotations

from gateway.admin import keys, state, tenants, usage
from gateway.admin.resource import Action, Resource

PREFIX = "/admin/v1"

_PAGE = ("limit", "after")

RESOURCES = (
    Resource(f"{PREFIX}/whoami", {"GET": Action(handle=state.whoami)}),
    Resource(
        f"{PREFIX}/limits",
        {"GET": Action(handle=state.show_limits, query=("tenant", *_PAGE))},
    ),
    Resource(
        f"{PREFIX}/usage",
        {"GET": Action(handle=usage.show_usage, query=("by", *usage.SELECTION))},
    ),
    Resource(
        f"{PREFIX}/usage/records",
        {"GET": Action(handle=usage.export_records, query=usage.SELECTION)},
    ),
    Resource(
        f"{PREFIX}/tenants",
        {
            "GET": Action(handle=tenants.list_tenants, query=_PAGE),
            "POST": Action(handle=tenants.create_tenant, takes_body=True, changes="create tenant"),
        },
    ),
    # those with a colon first: `{name}` takes it for a part of the name
    Resource(
        f"{PREFIX}/tenants/{{name}}:disable",
        {"POST": Action(handle=tenants.disable_tenant, changes="disable tenant")},
    ),
    Resource(
        f"{PREFIX}/tenants/{{name}}:enable",
        {"POST": Action(handle=tenants.enable_tenant, changes="enable tenant")},
    ),
    Resource(
        f"{PREFIX}/tenants/{{name}}",
        {
            "GET": Action(handle=tenants.show_tenant),
            "PATCH": Action(handle=tenants.change_tenant, takes_body=True, changes="change tenant"),
            "DELETE": Action(handle=tenants.delete_tenant, changes="delete tenant"),
        },
    ),
    Resource(
        f"{PREFIX}/tenants/{{name}}/keys",
        {
            "GET": Action(handle=keys.list_keys, query=_PAGE),
            "POST": Action(handle=keys.create_key, takes_body=True, changes="create key"),
        },
    ),
    Resource(
        f"{PREFIX}/keys/{{key_id}}:rotate",
        {"POST": Action(handle=keys.rotate_key, takes_body=True, changes="rotate key")},
    ),
    Resource(
        f"{PREFIX}/keys/{{key_id}}",
        {
            "GET": Action(handle=keys.show_key),
            "DELETE": Action(handle=keys.revoke_key, changes="revoke key"),
        },
    ),
)
