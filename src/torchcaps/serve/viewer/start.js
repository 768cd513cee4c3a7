// The validator would be asked over the network: there is none to ask.
SwaggerUIBundle({ url: "/openapi.json", dom_id: "#viewer", validatorUrl: null, deepLinking: true });
