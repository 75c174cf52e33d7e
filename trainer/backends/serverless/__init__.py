"""A batch in, a new version out, by W&B's serverless training, through the client that ART ships for it.

Read `backend` first: how a batch becomes one version where the service gives a job's id only in its answer. `batches`
makes settings into those of a job and refuses by name what the service does not have; `events` reads a job's events;
`service` is the seam, `client` reaches it by ART's own client, and `memory` is a shipped fake of it over HTTP.
"""
