"""Why a JSON schema is not enforced."""


class InvalidSchema(ValueError):
    """It says something that cannot be held to. The message is one sentence for people.

    `param` is the request's parameter, `path` a JSON pointer as a URI fragment ("#/properties/a"), `keyword` the one
    at fault there; it is empty where the schema as a whole is.
    """

    def __init__(self, param: str, keyword: str, path: str, reason: str) -> None:
        subject = f"'{keyword}' at {path}" if keyword else "the schema" if path == "#" else path
        super().__init__(f"Invalid schema for {param}: {subject} {reason}.")
        self.param, self.keyword, self.path, self.reason = param, keyword, path, reason


class SchemaTooComplex(ValueError):
    """It may well make sense, but turning it into a grammar takes more time or memory than one request may have."""

    def __init__(self, why: str = "it takes too long to turn into a grammar") -> None:
        super().__init__(f"The schema is too complex: {why}; make it smaller or flatter.")


class TakesTooLong(SchemaTooComplex):
    """It was not finished in time. It may be later: work goes on."""
