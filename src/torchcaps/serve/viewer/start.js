// Without a validator URL, because the page may not contact other hosts.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#viewer", validatorUrl: null, deepLinking: true });
